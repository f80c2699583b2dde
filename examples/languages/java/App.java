import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Runs a model on float32 numbers from standard input and prints its outputs, one per line.
 *
 * <p>{@code java -Dfanin.model=libfanin_model.so App.java RUNTIME OPS MODEL SHAPE [THREADS]}
 */
public final class App {
  /** An opened model; several threads may call run at once. The C interface is model.h. */
  static final class Model implements AutoCloseable {
    private static final int MESSAGE_SIZE = 1024;
    private static final SymbolLookup LIBRARY =
        SymbolLookup.libraryLookup(
            Path.of(System.getProperty("fanin.model")).toAbsolutePath(), Arena.global());
    private static final MethodHandle OPEN =
        function("model_open", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle RUN =
        function(
            "model_run",
            JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);
    private static final MethodHandle FREE = function("model_free", null, ADDRESS);
    private static final MethodHandle CLOSE = function("model_close", null, ADDRESS);

    private final MemorySegment handle;

    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... types) {
      FunctionDescriptor descriptor =
          result == null
              ? FunctionDescriptor.ofVoid(types)
              : FunctionDescriptor.of(result, types);
      return Linker.nativeLinker().downcallHandle(LIBRARY.find(name).orElseThrow(), descriptor);
    }

    Model(String runtime, String ops, String path, int threads) throws Throwable {
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment message = arena.allocate(MESSAGE_SIZE);
        MemorySegment result = arena.allocate(ADDRESS);
        int status =
            (int)
                OPEN.invokeExact(
                    arena.allocateFrom(runtime),
                    arena.allocateFrom(ops),
                    arena.allocateFrom(path),
                    threads,
                    result,
                    message);
        if (status != 0) throw new IllegalStateException(message.getString(0));
        handle = result.get(ADDRESS, 0);
      }
    }

    /** Returns the output for a row-major input. */
    float[] run(float[] input, long[] shape) throws Throwable {
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment message = arena.allocate(MESSAGE_SIZE);
        MemorySegment output = arena.allocate(ADDRESS);
        MemorySegment count = arena.allocate(JAVA_LONG);
        int status =
            (int)
                RUN.invokeExact(
                    handle,
                    arena.allocateFrom(JAVA_FLOAT, input),
                    (long) input.length,
                    arena.allocateFrom(JAVA_LONG, shape),
                    (long) shape.length,
                    output,
                    count,
                    message);
        if (status != 0) throw new IllegalStateException(message.getString(0));
        MemorySegment numbers = output.get(ADDRESS, 0);
        try {
          return numbers.reinterpret(count.get(JAVA_LONG, 0) * 4).toArray(JAVA_FLOAT);
        } finally {
          FREE.invokeExact(numbers);
        }
      }
    }

    @Override
    public void close() {
      try {
        CLOSE.invokeExact(handle);
      } catch (Throwable error) {
        throw new AssertionError(error); // a C function throws nothing
      }
    }
  }

  private static void fail(String message) {
    System.err.println("app: " + message);
    System.exit(1);
  }

  public static void main(String[] arguments) throws Throwable {
    if (arguments.length < 4 || arguments.length > 5 || System.getProperty("fanin.model") == null) {
      System.err.println(
          "usage: java -Dfanin.model=libfanin_model.so App RUNTIME OPS MODEL SHAPE [THREADS]");
      System.exit(2);
    }
    try {
      long[] shape = Arrays.stream(arguments[3].split(",")).mapToLong(Long::parseLong).toArray();
      int threads = arguments.length == 5 ? Integer.parseInt(arguments[4]) : 1;
      byte[] bytes = System.in.readAllBytes();
      float[] input = new float[bytes.length / 4];
      ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).asFloatBuffer().get(input);
      try (Model model = new Model(arguments[0], arguments[1], arguments[2], threads);
          PrintStream out = new PrintStream(new BufferedOutputStream(System.out))) {
        for (float value : model.run(input, shape)) out.println(value);
      }
    } catch (NumberFormatException error) {
      fail("not a whole number: " + error.getMessage());
    } catch (IllegalStateException error) {
      fail(error.getMessage());
    } catch (ExceptionInInitializerError error) { // of Model: its library was not found
      fail(error.getCause().getMessage());
    }
  }
}
