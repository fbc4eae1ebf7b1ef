// A GPU of host memory, for tests without one: the third implementation of what src/device and
// src/kernels declare for GPUs, beside *_cuda.cpp and *_nocuda.cpp, and of the operators that
// LibTorch has for GPUs alone. Binaries that link it (stand_in_*, tests/CMakeLists.txt) take a
// GPU's branches of model, engine, plan and trainer over the CPU's tensors; all else is the code of
// the program.
//
// Copies from and to registered memory wait in the thread's stream, as on a GPU, until a kernel is
// launched there, an operator is chosen, or the stream is waited for: who forgets to wait reads old
// bytes. Kernels are the references; tests/emulation holds the kernels' own code to those.
#pragma once

#include <string>
#include <vector>

#include "device/cuda_runtime.h"

struct CUstream_st;

namespace longshore::stand_in {

// What cuda_devices() says; at first one GPU.
void set_gpus(std::vector<CudaDevice> gpus);

// From now on this part computes what is wrong: "copies", "swiglu", or "" for none.
void break_part(const std::string& part);
bool is_broken(const char* part);

// How often this process made a GPU ready.
int prepared();

// Runs the copies that wait in this thread's stream.
void run_stream();
// What stands for every CudaSideStream: work there does not wait for the thread's copies.
CUstream_st* side_stream();

}  // namespace longshore::stand_in
