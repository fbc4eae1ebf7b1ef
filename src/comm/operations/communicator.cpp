#include "comm/operations/communicator.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "comm/operations/operation.h"

namespace longshore {

Completion::Completion(std::unique_ptr<State> state) : state_(std::move(state)) {}

Completion& Completion::operator=(Completion&& other) noexcept {
  if (this != &other) {
    Completion dropped = std::move(*this);
    state_ = std::move(other.state_);
  }
  return *this;
}

Completion::~Completion() {
  if (!state_) return;
  try {
    wait();
  } catch (const std::exception& error) {
    // Another error matters: the one that unwinds the owner, or the next operation's.
    log_debug(std::string("an operation that no thread waited for failed: ") + error.what());
  }
}

void Completion::wait() {
  if (!state_) return;
  const std::unique_ptr<State> state = std::move(state_);
  state->wait();
}

Bytes reduce_scratch_bytes(int64_t elements, DType /*wire*/, int32_t size) {
  if (size <= 1) return 0;
  // fp32 needs the received values; bf16 needs sent and received values, each half as wide.
  const int64_t part = (elements + size - 1) / size;
  const int64_t window = std::min(part, 2 * kRoundElements);
  return window * (size - 1) * static_cast<Bytes>(sizeof(float));
}

}  // namespace longshore
