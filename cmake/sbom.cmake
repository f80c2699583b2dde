# Lists what other projects' code the built libraries contain: a CycloneDX file in the wheel's
# .dist-info/sboms (PEP 770). Python dependencies stand in the wheel's METADATA.

# fanin_sbom(NAME COMPONENT...): the file of a wheel, installed with each CMake component named.
function(fanin_sbom name)
  if(NOT SKBUILD_STATE STREQUAL "wheel")
    return()
  endif()
  set(found "")
  if(FANIN_PORTABLE)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      fanin_sbom_entry(found libstdc++ ${CMAKE_CXX_COMPILER_VERSION}
                       "GPL-3.0-or-later WITH GCC-exception-3.1")
    elseif(FANIN_MUSL)
      fanin_sbom_entry(found libc++ ${CMAKE_CXX_COMPILER_VERSION} "Apache-2.0 WITH LLVM-exception")
    endif()
  endif()
  if(FANIN_PYTHON)
    fanin_sbom_entry(found pybind11 ${pybind11_VERSION} BSD-3-Clause)
  endif()
  if(FANIN_CUDA_ENABLED)
    fanin_sbom_entry(found cudart_static ${CUDAToolkit_VERSION} LicenseRef-NVIDIA-CUDA-EULA)
  endif()
  list(JOIN found "," SBOM_COMPONENTS)
  set(SBOM_NAME ${name})
  set(file ${CMAKE_BINARY_DIR}/${name}.cdx.json)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/sbom.cdx.json.in ${file} @ONLY)
  foreach(component IN LISTS ARGN)
    install(FILES ${file} DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT ${component})
  endforeach()
endfunction()

function(fanin_sbom_entry list name version license)
  set(entry "
    {\"type\": \"library\", \"name\": \"${name}\", \"version\": \"${version}\",
     \"licenses\": [{\"expression\": \"${license}\"}]}")
  set(${list} ${${list}} "${entry}" PARENT_SCOPE)
endfunction()
