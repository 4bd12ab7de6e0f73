# Which head sizes attention is compiled for on the device, and FlashInfer's prefill kernel where its headers are.
if(NOT MNEME_HAVE_CUDA)
  return()
endif()
# A file, because nvcc takes a definition apart at its commas.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/src/ops/attention/built_head_dims.h
  CONTENT "#define MNEME_HEAD_DIMS ${MNEME_HEAD_DIM_LIST}\n")
foreach(room ops_attention selection_mass selection_layer)
  target_include_directories(mneme_${room} PRIVATE ${PROJECT_BINARY_DIR}/generated)
endforeach()
if(MNEME_HAVE_FLASHINFER)
  # wgmma and what goes with it are in no other target than sm_90a.
  add_library(mneme_flashinfer OBJECT ${PROJECT_SOURCE_DIR}/src/ops/attention/flashinfer/attention_flashinfer.cu)
  set_target_properties(mneme_flashinfer PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_options(mneme_flashinfer PRIVATE --expt-relaxed-constexpr -DNDEBUG --diag-suppress=177)
  # Its CCCL before the toolkit's, which is older than it wants; -isystem would come after.
  target_include_directories(mneme_flashinfer BEFORE PRIVATE ${MNEME_FLASHINFER}/cccl ${MNEME_FLASHINFER}/include
    ${MNEME_FLASHINFER}/cutlass ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(mneme_flashinfer PRIVATE mneme_base CUDA::cudart_static)
  target_sources(mneme_ops_attention PRIVATE $<TARGET_OBJECTS:mneme_flashinfer>)
  mneme_backend(ops_attention flashinfer)
endif()
