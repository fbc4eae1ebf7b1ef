#define USE_C10D_GLOO 1

#include "comm/collectives/transport.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <map>

#include "base/mutex.h"
#include "comm/store/torch_store.h"

namespace longshore {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// The communicator's own wait ends transfers (abort), by a clock that stands still while the
// process is suspended. Gloo's limit would pass then.
constexpr std::chrono::hours kNoLimit(24 * 3650);

// c10d's tags are non-negative ints.
int to_tag(uint32_t tag) {
  return static_cast<int>(tag & 0x7fffffffu);
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

at::Tensor tensor_over(std::span<const std::byte> bytes) {
  // c10d takes one tensor type for both directions; it only reads outgoing bytes.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions(at::kByte));
}

// The messages that abort() must reach, shared by the transport and its transfers.
class InFlight {
 public:
  // Returns false once aborted.
  bool add(const Work& work) {
    const MutexLock lock(mutex_);
    if (aborted_) return false;
    works_.push_back(work);
    return true;
  }
  void remove(const std::vector<Work>& finished) {
    const MutexLock lock(mutex_);
    for (const Work& work : finished) std::erase(works_, work);
  }
  void abort() noexcept {
    const MutexLock lock(mutex_);
    aborted_ = true;
    for (const Work& work : works_) work->abort();
  }

 private:
  Mutex mutex_;
  bool aborted_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::vector<Work> works_ LONGSHORE_GUARDED_BY(mutex_);
};

class GlooTransfer : public PendingTransfer {
 public:
  explicit GlooTransfer(InFlight* in_flight) : in_flight_(in_flight) {}
  // A destroyed Work no longer touches its buffer, finished or not.
  ~GlooTransfer() override {
    in_flight_->remove(works_);
    works_.clear();
  }

  void add(int32_t peer, const Work& work) {
    works_.push_back(work);
    peers_.push_back(peer);
    if (!in_flight_->add(work)) throw TransportError(peer, "the transfer was cancelled");
  }

  void finish() override {
    for (size_t i = 0; i < works_.size(); ++i) {
      try {
        if (!works_[i]->wait(kNoLimit))
          throw TransportError(peers_[i], "the transfer was cancelled");
      } catch (const TransportError&) {
        throw;
      } catch (const std::exception& error) {
        throw TransportError(peers_[i], first_line(error));
      }
    }
  }

 private:
  InFlight* in_flight_;
  std::vector<Work> works_;
  std::vector<int32_t> peers_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(const StoreConnection& store, const GlooOptions& options) {
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(
        options.prefix, make_torch_store(store, options.timeout));
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->threads = 1;  // for Gloo's own collectives, which are not used
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
    group_ =
        c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, options.index, options.size, gloo);
  }

  std::unique_ptr<PendingTransfer> start(const std::vector<Outgoing>& outgoing,
                                         const std::vector<Incoming>& incoming,
                                         uint32_t first_tag) override {
    auto transfer = std::make_unique<GlooTransfer>(&in_flight_);
    std::map<int32_t, uint32_t> messages;
    // Receives start first, so that a message goes straight into its buffer.
    for (const Incoming& message : incoming) {
      std::vector<at::Tensor> tensors = {tensor_over(message.bytes)};
      const int tag = to_tag(first_tag + messages[message.peer]++);
      transfer->add(message.peer, or_error(message.peer, [&] {
                      return group_->recv(tensors, message.peer, tag);
                    }));
    }
    messages.clear();
    for (const Outgoing& message : outgoing) {
      std::vector<at::Tensor> tensors = {tensor_over(message.bytes)};
      const int tag = to_tag(first_tag + messages[message.peer]++);
      transfer->add(message.peer, or_error(message.peer, [&] {
                      return group_->send(tensors, message.peer, tag);
                    }));
    }
    return transfer;
  }

  void abort() noexcept override { in_flight_.abort(); }

 private:
  template <typename Call>
  static Work or_error(int32_t peer, const Call& call) {
    try {
      return call();
    } catch (const std::exception& error) {
      throw TransportError(peer, first_line(error));
    }
  }

  InFlight in_flight_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Transport> connect_gloo(const StoreConnection& store, const GlooOptions& options) {
  try {
    return std::make_unique<GlooTransport>(store, options);
  } catch (const std::exception& error) {
    throw StoreError(first_line(error));
  }
}

}  // namespace longshore
