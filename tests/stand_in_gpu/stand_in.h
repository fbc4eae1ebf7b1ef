// A GPU of host memory, for tests without one: the third implementation of what src/device and
// src/kernels declare for GPUs, beside *_cuda.cpp and *_nocuda.cpp, and of the operators that
// LibTorch has for GPUs alone. Binaries that link it (stand_in_*, tests/CMakeLists.txt) take a
// GPU's branches of model, engine, plan and trainer over the CPU's tensors; all else is the code of
// the program.
//
// Ranks are threads of one process; collectives.cpp stands for NCCL.
//
// Copies from and to registered memory wait in the thread's stream, as on a GPU, until a kernel is
// launched there, an operator is chosen, or the stream is waited for: who forgets to wait reads old
// bytes. Kernels are the references; tests/emulation holds the kernels' own code to those.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "device/cuda_runtime.h"

struct CUstream_st;

namespace longshore::stand_in {

// What cuda_devices() says; at first one GPU.
void set_gpus(std::vector<CudaDevice> gpus);

// From now on this part computes what is wrong: "copies", "swiglu", or "" for none. With "link" a
// copy throws CudaError.
void break_part(const std::string& part);
bool is_broken(const char* part);

// Whether LibTorch's tensors are the GPU's now: a CudaWorkspaceBudget is in force.
bool tensors_are_gpus();
// Of those, one of so many bytes finds no room: throws what that budget throws.
[[noreturn]] void refuse_tensor(Bytes bytes);

// ---- Collectives: ranks are threads, a GPU runs one at a time (collectives.cpp)

// A collective as a rank was given it: the nth of that label there, from 1.
struct Given {
  int32_t rank = 0;
  std::string what;
  UnitId unit;
  int64_t nth = 1;
  bool operator==(const Given&) const = default;
};
// The GPU of a rank gets `second` only when it has got `first`: one of the orders that may be.
struct OrderRule {
  Given first;
  Given second;
};
// From now on; counts and collectives begin anew, so nothing may be under way.
void order_collectives(std::vector<OrderRule> rules);
// How many were run since then.
int64_t collectives_ended();

// Whether GPUs register memory that is mapped to be read only; at first they do.
void register_read_only(bool can);
// Whether copies from and to the memory may run behind the host's back.
bool registered(std::span<const std::byte> memory);
// How often this process registered memory.
int registrations();

// How often this process made a GPU ready.
int prepared();

// Whether kernels and products leave their results as they are (tests/fakes/cpu_branches.h).
bool shapes_only();

// Runs the copies that wait in this thread's stream.
void run_stream();
// What stands for every CudaSideStream: work there does not wait for the thread's copies.
CUstream_st* side_stream();

}  // namespace longshore::stand_in
