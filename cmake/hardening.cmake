# What makes memory errors harder to exploit, on everything that is built: ELF files whose tables of
# functions are read only once loaded, checks of the stack's guard and of buffers whose sizes the
# compiler knows, and branches that only go where one is meant to arrive. Each where the compiler has
# it; tests/ort_ops/test_hardening.py reads it back from the files. Sanitizers bring their own checks.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckLinkerFlag)

set(fanin_hardening "")
foreach(flag -fstack-protector-strong -fcf-protection=full -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
  check_cxx_compiler_flag(${flag} ${has})
  if(${has})
    list(APPEND fanin_hardening ${flag})
  endif()
endforeach()

if(NOT FANIN_SANITIZE)
  # An older libc takes 3 for 2, with a warning; level 1 and above need optimization. Distributions
  # may define it themselves.
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("
    #include <cstring>
    #if !defined(__has_builtin)
    #error too old
    #elif !__has_builtin(__builtin_dynamic_object_size)
    #error too old
    #endif
    int main() { return std::strlen(\"\"); }" FANIN_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fanin_fortify 2)
  if(FANIN_HAS_FORTIFY_3)
    set(fanin_fortify 3)
  endif()
  set(fanin_optimized "$<NOT:$<CONFIG:Debug>>")
  add_compile_options(
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,${fanin_optimized}>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${fanin_fortify}>")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${fanin_hardening}>")
if(fanin_hardening)
  list(JOIN fanin_hardening "," fanin_host_hardening)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${fanin_host_hardening}>")
endif()

foreach(flag -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
  check_linker_flag(CXX ${flag} ${has})
  if(${has})
    add_link_options(${flag})
  endif()
endforeach()
