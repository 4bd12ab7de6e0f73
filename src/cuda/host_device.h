// Functions that host code and kernels share.
#pragma once

#ifdef __CUDACC__
#define MNEME_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MNEME_HOST_DEVICE inline
#endif
