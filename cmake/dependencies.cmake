# Every dependency, found once. docs/dependencies.md says what each is for.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)  # headers only: Asio, Beast
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)
if(MNEME_ONEDNN)
  # Not find_package(dnnl): Debian's CMake package asks for OpenCL's headers, which we do not need.
  find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
  find_library(DNNL_LIBRARY dnnl REQUIRED)
  add_library(mneme_dnnl INTERFACE)
  target_include_directories(mneme_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
  target_link_libraries(mneme_dnnl INTERFACE ${DNNL_LIBRARY})
endif()
