// SoloCommunicator: the collectives of a group of one rank, for example in a run on one GPU. Every
// operation completes at once; nothing travels, so nothing is rounded to a wire dtype. Its counters
// count the bytes handed over, as those of Gloo and NCCL do. The caller that got it from a World
// (the object that makes a run's groups) owns it and calls it from one thread.
#pragma once

#include <string>
#include <utility>

#include "comm/operations/communicator.h"

namespace longshore {

class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  int32_t size() const override { return 1; }
  int32_t index() const override { return 0; }

  Completion all_gather(Segments segments, const OpLabel& label) override;
  Completion reduce_scatter(FloatSegments segments, DType wire, std::span<std::byte> scratch,
                            const OpLabel& label) override;
  Completion all_reduce(FloatSegments segments, DType wire, std::span<std::byte> scratch,
                        const OpLabel& label) override;
  Completion all_reduce(std::span<double> values, const OpLabel& label) override;
  Completion broadcast(std::span<std::byte> bytes, int32_t root, const OpLabel& label) override;
  Completion barrier(const OpLabel& label) override;

  const PayloadCounters& counters() const override { return counters_; }
  PayloadCounters& counters() override { return counters_; }

 private:
  std::string name_;
  PayloadCounters counters_;
};

}  // namespace longshore
