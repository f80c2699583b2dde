# Decides whether the CUDA kernels are built: sets FANIN_CUDA_ENABLED, and enables the language.
#   FANIN_CUDA=AUTO  if a CUDA compiler is found that is new enough, else a message says why not
#   FANIN_CUDA=ON    or fail
#   FANIN_CUDA=OFF   never; nothing is looked for
set(FANIN_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE FANIN_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT FANIN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FANIN_CUDA is '${FANIN_CUDA}', it must be AUTO, ON or OFF")
endif()

# The first release that compiles for all architectures below.
set(FANIN_CUDA_MINIMUM 12.8)
# Turing to Blackwell, and the intermediate code of the last one for what comes after it.
set(FANIN_CUDA_ALL_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)

set(FANIN_CUDA_ENABLED OFF)
set(problem "")
if(NOT FANIN_CUDA STREQUAL "OFF")
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/ort_ops/csrc/cuda/CMakeLists.txt)
    set(problem "this tree holds no CUDA kernels")
  elseif(FANIN_SANITIZE)
    set(problem "FANIN_SANITIZE is set, and the sanitizers do not know device code")
  else()
    # Where CUDA installs itself without telling PATH.
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      find_program(FANIN_NVCC nvcc PATH_SUFFIXES bin HINTS ENV CUDA_HOME ENV CUDA_PATH
                   PATHS /usr/local/cuda)
      if(FANIN_NVCC)
        set(CMAKE_CUDA_COMPILER ${FANIN_NVCC} CACHE FILEPATH "CUDA compiler")
      endif()
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      set(problem "no working CUDA compiler was found (PATH, CUDACXX, CUDA_HOME, /usr/local/cuda)")
    endif()
  endif()
  if(NOT problem)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES ${FANIN_CUDA_ALL_ARCHITECTURES})
    endif()
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    # Nothing of CUDA is needed to load the library, only to use it.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS FANIN_CUDA_MINIMUM)
      set(problem "${CMAKE_CUDA_COMPILER} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}, at least \
${FANIN_CUDA_MINIMUM} is needed")
    endif()
  endif()
  if(NOT problem)
    find_package(CUDAToolkit REQUIRED)
    set(FANIN_CUDA_ENABLED ON)
    message(STATUS "fanin: CUDA kernels for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(FANIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FANIN_CUDA is ON, but ${problem}")
  else()
    message(STATUS "fanin: no CUDA kernels: ${problem}")
  endif()
endif()
