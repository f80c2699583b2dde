# Cross build for 64-bit Arm Linux with Debian's g++-aarch64-linux-gnu; qemu-user runs the binaries:
#   cmake -S . -B build/aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DFANIN_PYTHON=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

find_program(FANIN_AARCH64_CXX aarch64-linux-gnu-g++ REQUIRED)
set(CMAKE_CXX_COMPILER ${FANIN_AARCH64_CXX})

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# The folder of the compiler's libc, where the emulator finds loader and libraries.
find_program(FANIN_QEMU_AARCH64 qemu-aarch64)
if(FANIN_QEMU_AARCH64)
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libc.so.6
    OUTPUT_VARIABLE fanin_libc OUTPUT_STRIP_TRAILING_WHITESPACE)
  get_filename_component(fanin_libc "${fanin_libc}" REALPATH)
  get_filename_component(fanin_sysroot "${fanin_libc}/../.." ABSOLUTE)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${FANIN_QEMU_AARCH64} -L ${fanin_sysroot})
endif()
