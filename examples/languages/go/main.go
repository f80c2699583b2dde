// Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//
//	app RUNTIME OPS MODEL SHAPE [THREADS] < input
package main

// #cgo CFLAGS: -I${SRCDIR}/..
// #cgo LDFLAGS: -lfanin_model
// #include <stdlib.h>
// #include "model.h"
import "C"

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// Model is an opened model; several goroutines may call Run at once.
type Model struct{ handle *C.Model }

// Open opens the model file with the libraries of ONNX Runtime and of fanin's ops.
func Open(runtime, ops, path string, threads int) (*Model, error) {
	var texts [3]*C.char
	for i, text := range []string{runtime, ops, path} {
		texts[i] = C.CString(text)
		defer C.free(unsafe.Pointer(texts[i]))
	}
	var message [C.MODEL_MESSAGE_SIZE]C.char
	model := new(Model)
	status := C.model_open(texts[0], texts[1], texts[2], C.int(threads), &model.handle, &message[0])
	if status != 0 {
		return nil, errors.New(C.GoString(&message[0]))
	}
	return model, nil
}

// Close releases the model, which must not be used afterwards.
func (m *Model) Close() { C.model_close(m.handle) }

// Run returns the model's output for a row-major input of the given shape.
func (m *Model) Run(input []float32, shape []int64) ([]float32, error) {
	if len(input) == 0 || len(shape) == 0 {
		return nil, errors.New("the input is empty")
	}
	var message [C.MODEL_MESSAGE_SIZE]C.char
	var output *C.float
	var count C.size_t
	status := C.model_run(m.handle, (*C.float)(&input[0]), C.size_t(len(input)),
		(*C.int64_t)(&shape[0]), C.size_t(len(shape)), &output, &count, &message[0])
	if status != 0 {
		return nil, errors.New(C.GoString(&message[0]))
	}
	defer C.model_free(output)
	return append([]float32(nil), unsafe.Slice((*float32)(output), int(count))...), nil
}

func parseShape(text string) ([]int64, error) {
	var shape []int64
	for _, part := range strings.Split(text, ",") {
		size, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a shape such as 1,784", text)
		}
		shape = append(shape, size)
	}
	return shape, nil
}

func run(arguments []string) error {
	shape, err := parseShape(arguments[3])
	if err != nil {
		return err
	}
	threads := 1
	if len(arguments) == 5 {
		if threads, err = strconv.Atoi(arguments[4]); err != nil {
			return fmt.Errorf("%q is not a whole number in range", arguments[4])
		}
	}
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	input := make([]float32, len(data)/4)
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, input); err != nil {
		return err
	}
	model, err := Open(arguments[0], arguments[1], arguments[2], threads)
	if err != nil {
		return err
	}
	defer model.Close()
	output, err := model.Run(input, shape)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for _, value := range output {
		fmt.Fprintf(out, "%.9g\n", value)
	}
	return out.Flush()
}

func main() {
	if len(os.Args) < 5 || len(os.Args) > 6 {
		fmt.Fprintf(os.Stderr, "usage: %s RUNTIME OPS MODEL SHAPE [THREADS] < input\n", os.Args[0])
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}
