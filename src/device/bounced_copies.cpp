#include "device/bounced_copies.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
#include "device/host_mapping.h"

namespace longshore {
namespace {

using Span = std::span<std::byte>;
using ConstSpan = std::span<const std::byte>;

constexpr Bytes kLeastPieceBytes = 64 * kKiB;
// Copies of at most these bytes that are not registered (a row of tokens) go through the driver's
// buffers: they need not wait for a large copy of another lane.
constexpr size_t kSmallBytes = 256 * static_cast<size_t>(kKiB);

// The two buffers of a direction. Marks are of the last copy of the GPU from or to a buffer.
struct BouncePair {
  BouncePair(int device, Bytes piece)
      : memory(2 * piece, "buffers of copies"),
        registration(memory.bytes()),
        marks{std::make_unique<CudaMark>(device), std::make_unique<CudaMark>(device)} {}

  Span half(size_t index) const {
    const size_t bytes = memory.bytes().size() / 2;
    return memory.bytes().subspan(index * bytes, bytes);
  }

  HostMapping memory;
  HostRegistration registration;  // destroyed before the memory
  std::array<std::unique_ptr<CudaMark>, 2> marks;
};

class BouncedCopies final : public CopyEngine {
 public:
  BouncedCopies(std::unique_ptr<CopyEngine> direct, int device, Bytes most)
      : direct_(std::move(direct)), device_(device), piece_(bounce_piece_bytes(most)) {}

  void to_device(Span device, ConstSpan host) override {
    if (!bounces(host) || !bounce_up(device, host)) direct_->to_device(device, host);
  }
  void to_host(Span host, ConstSpan device) override {
    if (!bounces(host) || !bounce_down(host, device)) direct_->to_host(host, device);
  }

  void finish() override { direct_->finish(); }
  Counts counts() const override { return direct_->counts(); }

 private:
  struct Direction {
    Mutex mutex;
    bool tried LONGSHORE_GUARDED_BY(mutex) = false;
    std::unique_ptr<BouncePair> pair LONGSHORE_GUARDED_BY(mutex);
  };

  static bool bounces(ConstSpan host) {
    return host.size() > kSmallBytes && !registered_with_gpus(host);
  }

  // Copies to the device through the buffers. Returns false, and copies nothing, without them.
  bool bounce_up(Span device, ConstSpan host) {
    const MutexLock lock(up_.mutex);
    const BouncePair* const pair = ready(up_);
    if (pair == nullptr) return false;
    const size_t each = pair->half(0).size();
    size_t index = 0;
    for (size_t done = 0; done < host.size(); index = 1 - index) {
      const size_t count = std::min(each, host.size() - done);
      const Span buffer = pair->half(index).first(count);
      // HOST WAIT: the GPU may still read the piece before the last one.
      if (done >= 2 * each) pair->marks[index]->wait();
      std::memcpy(buffer.data(), host.data() + done, count);
      direct_->to_device(device.subspan(done, count), buffer);
      pair->marks[index]->record();
      done += count;
    }
    // HOST WAIT: another thread, which cannot wait for this one's stream, may take the buffers.
    pair->marks[1 - index]->wait();
    return true;
  }

  // Copies to the host, in the same way.
  bool bounce_down(Span host, ConstSpan device) {
    const MutexLock lock(down_.mutex);
    const BouncePair* const pair = ready(down_);
    if (pair == nullptr) return false;
    Span waiting;  // where the last piece belongs; it is in the other buffer
    size_t index = 0;
    for (size_t done = 0; done < host.size(); index = 1 - index) {
      const size_t count = std::min(pair->half(index).size(), host.size() - done);
      direct_->to_host(pair->half(index).first(count), device.subspan(done, count));
      pair->marks[index]->record();
      empty(*pair, 1 - index, waiting);
      waiting = host.subspan(done, count);
      done += count;
    }
    empty(*pair, 1 - index, waiting);
    return true;
  }

  // HOST WAIT: the piece is copied to its place once the GPU has written it.
  static void empty(const BouncePair& pair, size_t index, Span place) {
    if (place.empty()) return;
    pair.marks[index]->wait();
    std::memcpy(place.data(), pair.half(index).data(), place.size());
  }

  // Returns the direction's buffers, made at the first call; null if they cannot be registered.
  const BouncePair* ready(Direction& direction) LONGSHORE_REQUIRES(direction.mutex) {
    if (std::exchange(direction.tried, true)) return direction.pair.get();
    std::string refusal = "offload.pinned_memory";
    for (Bytes piece = piece_; piece >= kLeastPieceBytes; piece /= 2) {
      auto pair = std::make_unique<BouncePair>(device_, piece);
      if (pair->registration.registered()) {
        direction.pair = std::move(pair);
        return direction.pair.get();
      }
      refusal = pair->registration.refusal();
    }
    log_warning("no memory for buffers of copies can be registered with the GPU (" + refusal +
                "); pageable memory is copied by the driver, more slowly");
    return nullptr;
  }

  std::unique_ptr<CopyEngine> direct_;
  int device_;
  Bytes piece_;
  Direction up_, down_;
};

}  // namespace

Bytes bounce_piece_bytes(Bytes most) {
  const Bytes piece = std::min(kBouncePieceBytes, most / kBounceBuffers / 4096 * 4096);
  return piece < kLeastPieceBytes ? 0 : piece;
}

std::unique_ptr<CopyEngine> make_bounced_copies(std::unique_ptr<CopyEngine> direct, int device,
                                                Bytes most) {
  return std::make_unique<BouncedCopies>(std::move(direct), device, most);
}

}  // namespace longshore
