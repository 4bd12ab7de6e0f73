# The library as others use it: one shared object with everything inside, the public headers, and a CMake package, so
# that find_package(mneme) gives mneme::mneme. What the library is made with (oneDNN, fmt, ...) does not reach its
# users.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The rooms whose functions the public headers declare go in whole; of the others, what these need.
add_library(mneme_shared SHARED
  $<TARGET_OBJECTS:mneme_server> $<TARGET_OBJECTS:mneme_engine>
  $<TARGET_OBJECTS:mneme_recipes> $<TARGET_OBJECTS:mneme_base>)
add_library(mneme::mneme ALIAS mneme_shared)
target_link_libraries(mneme_shared PRIVATE mneme_server)
target_include_directories(mneme_shared PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(mneme_shared PUBLIC cxx_std_20)
set_target_properties(mneme_shared PROPERTIES
  OUTPUT_NAME mneme EXPORT_NAME mneme LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS mneme_shared EXPORT mnemeTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mneme)
install(TARGETS mneme_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mneme)
# mneme finds them there; OPTIONAL, as ./quickstart does not build them.
install(TARGETS mneme_doctor mneme_serve mneme_eval mneme_bench RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/mneme COMPONENT mneme OPTIONAL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mneme DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT mneme)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mneme)
install(EXPORT mnemeTargets NAMESPACE mneme:: DESTINATION ${package_dir} COMPONENT mneme)
file(WRITE ${PROJECT_BINARY_DIR}/mnemeConfig.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/mnemeTargets.cmake)\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mnemeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mnemeConfig.cmake ${PROJECT_BINARY_DIR}/mnemeConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT mneme)
