//! Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//!
//!     app RUNTIME OPS MODEL SHAPE [THREADS] < input
use std::error::Error;
use std::ffi::{c_char, c_int, CStr, CString};
use std::io::{Read, Write};
use std::ptr::null_mut;
use std::{env, io, process, slice};

/// The C interface of `model.h`.
mod ffi {
    use super::{c_char, c_int};

    pub const MESSAGE_SIZE: usize = 1024;

    #[repr(C)]
    pub struct Model {
        _opaque: [u8; 0],
    }

    #[link(name = "fanin_model")]
    unsafe extern "C" {
        pub fn model_open(
            runtime: *const c_char,
            ops: *const c_char,
            path: *const c_char,
            threads: c_int,
            model: *mut *mut Model,
            message: *mut c_char,
        ) -> c_int;
        pub fn model_run(
            model: *const Model,
            input: *const f32,
            count: usize,
            shape: *const i64,
            rank: usize,
            output: *mut *mut f32,
            output_count: *mut usize,
            message: *mut c_char,
        ) -> c_int;
        pub fn model_free(output: *mut f32);
        pub fn model_close(model: *mut Model);
    }
}

/// Calls a function that returns a status and, if that is not 0, has written a message.
fn call(function: impl FnOnce(*mut c_char) -> c_int) -> Result<(), String> {
    let mut message = [0u8; ffi::MESSAGE_SIZE];
    if function(message.as_mut_ptr().cast()) == 0 {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&message).unwrap_or_default();
    Err(text.to_string_lossy().into_owned())
}

/// An opened model.
struct Model(*mut ffi::Model);

// SAFETY: several threads may call model_run at once.
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    fn open(runtime: &str, ops: &str, path: &str, threads: i32) -> Result<Self, Box<dyn Error>> {
        let [runtime, ops, path] = [
            CString::new(runtime)?,
            CString::new(ops)?,
            CString::new(path)?,
        ];
        let mut model = null_mut();
        // SAFETY: the strings live until the call returns.
        call(|message| unsafe {
            ffi::model_open(
                runtime.as_ptr(),
                ops.as_ptr(),
                path.as_ptr(),
                threads,
                &mut model,
                message,
            )
        })?;
        Ok(Self(model))
    }

    /// Returns the output for a row-major input.
    fn run(&self, input: &[f32], shape: &[i64]) -> Result<Vec<f32>, String> {
        let (mut output, mut count) = (null_mut(), 0);
        // SAFETY: the model is open, and the C function reads no more than the given lengths.
        unsafe {
            call(|message| {
                ffi::model_run(
                    self.0,
                    input.as_ptr(),
                    input.len(),
                    shape.as_ptr(),
                    shape.len(),
                    &mut output,
                    &mut count,
                    message,
                )
            })?;
            let copy = slice::from_raw_parts(output, count).to_vec();
            ffi::model_free(output);
            Ok(copy)
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the model is open, and nobody can use it afterwards.
        unsafe { ffi::model_close(self.0) }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let shape: Vec<i64> = arguments[3]
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("'{}' is not a shape such as 1,784", arguments[3]))?;
    let threads = arguments.get(4).map_or("1", String::as_str);
    let threads = threads
        .parse()
        .map_err(|_| format!("'{threads}' is not a whole number in range"))?;
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let input: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
        .collect();
    let model = Model::open(&arguments[0], &arguments[1], &arguments[2], threads)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for value in model.run(&input, &shape)? {
        writeln!(out, "{value}")?; // the shortest text that reads back as the same number
    }
    Ok(out.flush()?)
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if !(5..=6).contains(&arguments.len()) {
        eprintln!(
            "usage: {} RUNTIME OPS MODEL SHAPE [THREADS] < input",
            arguments[0]
        );
        process::exit(2);
    }
    if let Err(error) = run(&arguments[1..]) {
        eprintln!("app: {error}");
        process::exit(1);
    }
}
