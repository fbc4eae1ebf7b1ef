// A GPU of host memory for tests without one: the third implementation of what src/device and
// src/kernels declare for GPUs, beside *_cuda.cpp and *_nocuda.cpp, and of LibTorch's GPU-only
// operators. Binaries that link it (stand_in_*, tests/CMakeLists.txt) take a GPU's branches of
// model, engine, plan and trainer over CPU tensors; all other code is the program's.
//
// Ranks are threads of one process; collectives.cpp stands for NCCL.
//
// Copies from and to registered memory wait in the thread's stream, as on a GPU, until a kernel is
// launched there, an operator is chosen, or the stream is waited for: code that forgets to wait
// reads old bytes. Kernels are the references; tests/emulation compares the kernels' own code with
// those.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "device/cuda_runtime.h"

struct CUstream_st;

namespace longshore::stand_in {

// Sets the result of cuda_devices(); at first it is one GPU.
void set_gpus(std::vector<CudaDevice> gpus);

// From now on this part computes what is wrong: "copies", "glu", or "" for none. With "link" a
// copy throws CudaError.
void break_part(const std::string& part);
bool is_broken(const char* part);

// Returns whether LibTorch's tensors are the GPU's now: a CudaWorkspaceBudget is in force.
bool tensors_are_gpus();
// Refuses a tensor of this size with the error of that budget.
[[noreturn]] void refuse_tensor(Bytes bytes);

// ---- Collectives: ranks are threads, a GPU runs one at a time (collectives.cpp)

// Given: a collective as issued by a rank: the nth with that label there, from 1.
struct Given {
  int32_t rank = 0;
  std::string what;
  UnitId unit;
  int64_t nth = 1;
  bool operator==(const Given&) const = default;
};
// OrderRule: a rank's GPU gets `second` only after `first`, one of the possible orders.
struct OrderRule {
  Given first;
  Given second;
};
// Sets the rules from now on; counts and collectives restart, so none may be in flight.
void order_collectives(std::vector<OrderRule> rules);
// Returns how many collectives ended since order_collectives().
int64_t collectives_ended();

// Sets whether GPUs register read-only mapped memory; at first they do.
void register_read_only(bool can);
// From now on the GPUs refuse to register memory beyond these bytes in all, as WSL2 does.
void pin_at_most(Bytes bytes);
// Returns the most bytes that were registered at one time since then.
Bytes most_registered();
// Returns whether copies from and to the memory may run asynchronously.
bool registered(std::span<const std::byte> memory);
// How often this process registered memory.
int registrations();

// Returns how often this process made a GPU ready.
int prepared();

// Returns whether kernels and products leave their results as they are
// (tests/fakes/cpu_branches.h).
bool shapes_only();

// Runs the copies that wait in this thread's stream.
void run_stream();
// The stream that stands in for every CudaSideStream; it does not wait for the thread's copies.
CUstream_st* side_stream();

}  // namespace longshore::stand_in
