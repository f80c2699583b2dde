# Build for Windows by the clang and libc++ of zig (PyPI package ziglang):
#   cmake -S . -B build/windows -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-windows-gnu.cmake -DFANIN_PYTHON=OFF
# Not by MinGW's GCC, which does not align vectors of 32 bytes on the stack there (GCC bug 54412).
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(FANIN_ZIG_TARGET x86_64-windows-gnu)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
