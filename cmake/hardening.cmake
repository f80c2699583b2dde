# Compiler and linker flags that make memory errors harder to exploit, for everything that is built:
# function tables that are read-only after loading (RELRO), stack protectors, bounds checks of
# buffers of known size (FORTIFY_SOURCE), and control-flow protection of indirect branches. Each
# flag is used if the compiler supports it; tests/ort_ops/test_hardening.py checks the built files.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckLinkerFlag)

# Sanitizers have their own checks; and together with the stack protector, GCC 12 misaligns vectors
# of 64 bytes on AddressSanitizer's fake stack.
if(NOT FANIN_SANITIZE)
  set(hardening "")
  foreach(flag -fstack-protector-strong -fcf-protection=full -mbranch-protection=standard)
    string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
    check_cxx_compiler_flag(${flag} ${has})
    if(${has})
      list(APPEND hardening ${flag})
    endif()
  endforeach()
  if(hardening)
    list(JOIN hardening "," host_hardening)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${hardening}>"
                        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_hardening}>")
  endif()

  # An older libc treats level 3 as 2, with a warning. Distributions may define a level themselves.
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("
    #include <cstring>
    #if !defined(__has_builtin)
    #error too old
    #elif !__has_builtin(__builtin_dynamic_object_size)
    #error too old
    #endif
    int main() { return static_cast<int>(std::strlen(\"\")); }" FANIN_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(level 2)
  if(FANIN_HAS_FORTIFY_3)
    set(level 3)
  endif()
  # FORTIFY_SOURCE requires optimization.
  set(optimized_cxx "$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>")
  add_compile_options("$<${optimized_cxx}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${level}>")
endif()

if(WIN32 OR APPLE)
  return()  # these are flags of ELF's linkers, which others may accept without a word
endif()
foreach(flag -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
  check_linker_flag(CXX ${flag} ${has})
  if(${has})
    add_link_options(${flag})
  endif()
endforeach()
