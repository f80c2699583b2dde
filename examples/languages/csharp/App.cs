// Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//
//   App RUNTIME OPS MODEL SHAPE [THREADS] < input
//
// Microsoft.ML.OnnxRuntime can register the op library by itself, see docs/languages.md. This app
// needs no package, only libfanin_model.so beside it.
using System;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;

/// <summary>An opened model; several threads may call Run at once.</summary>
sealed class Model : SafeHandle
{
    const int MessageSize = 1024;

    public Model() : base(IntPtr.Zero, ownsHandle: true) { }

    public override bool IsInvalid => handle == IntPtr.Zero;

    public static Model Open(string runtime, string ops, string path, int threads)
    {
        var message = new byte[MessageSize];
        Check(model_open(runtime, ops, path, threads, out Model model, message), message);
        return model;
    }

    /// <summary>Returns the output for a row-major input.</summary>
    public float[] Run(float[] input, long[] shape)
    {
        var message = new byte[MessageSize];
        int status = model_run(
            this, input, Size(input), shape, Size(shape), out IntPtr output, out UIntPtr count, message);
        Check(status, message);
        try
        {
            var numbers = new float[checked((int)count)];
            Marshal.Copy(output, numbers, 0, numbers.Length);
            return numbers;
        }
        finally
        {
            model_free(output);
        }
    }

    protected override bool ReleaseHandle()
    {
        model_close(handle);
        return true;
    }

    static UIntPtr Size(Array array) => new UIntPtr((ulong)array.LongLength);

    static void Check(int status, byte[] message)
    {
        if (status == 0) return;
        int length = Array.IndexOf(message, (byte)0);
        throw new InvalidOperationException(Encoding.UTF8.GetString(message, 0, length));
    }

    // The C interface of model.h. Strings are UTF-8 on Unix.
    [DllImport("fanin_model")]
    static extern int model_open(
        string runtime, string ops, string path, int threads, out Model model, [Out] byte[] message);

    [DllImport("fanin_model")]
    static extern int model_run(
        Model model, float[] input, UIntPtr count, long[] shape, UIntPtr rank,
        out IntPtr output, out UIntPtr outputCount, [Out] byte[] message);

    [DllImport("fanin_model")]
    static extern void model_free(IntPtr output);

    [DllImport("fanin_model")]
    static extern void model_close(IntPtr model);
}

static class App
{
    static float[] ReadFloats(Stream stream)
    {
        using (var bytes = new MemoryStream())
        {
            stream.CopyTo(bytes);
            var numbers = new float[bytes.Length / sizeof(float)];
            Buffer.BlockCopy(bytes.GetBuffer(), 0, numbers, 0, numbers.Length * sizeof(float));
            return numbers;
        }
    }

    static T ParseNumber<T>(string text, Func<string, NumberStyles, IFormatProvider, T> parse)
    {
        try
        {
            return parse(text, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture);
        }
        catch (Exception error) when (error is FormatException || error is OverflowException)
        {
            throw new InvalidOperationException($"'{text}' is not a whole number in range");
        }
    }

    static void Run(string[] given)
    {
        var shape = given[3].Split(',').Select(size => ParseNumber(size, long.Parse)).ToArray();
        int threads = given.Length == 5 ? ParseNumber(given[4], int.Parse) : 1;
        float[] input = ReadFloats(Console.OpenStandardInput());
        using (Model model = Model.Open(given[0], given[1], given[2], threads))
        {
            foreach (float value in model.Run(input, shape))
                Console.WriteLine(value.ToString("G9", CultureInfo.InvariantCulture));
        }
    }

    static int Main(string[] given)
    {
        if (given.Length < 4 || given.Length > 5)
        {
            Console.Error.WriteLine("usage: App RUNTIME OPS MODEL SHAPE [THREADS] < input");
            return 2;
        }
        try
        {
            Run(given);
            return 0;
        }
        catch (InvalidOperationException error)
        {
            Console.Error.WriteLine($"app: {error.Message}");
        }
        catch (DllNotFoundException)
        {
            Console.Error.WriteLine("app: libfanin_model.so is not beside the app");
        }
        return 1;
    }
}
