// A deterministic drive in memory that can fail in every known way. A SimMedium is the
// durable part (flushed bytes, and writes since then); a SimFile is a BlockFile on it. One thread.
// For tests of everything above BlockFile, also in programs that use Longshore as a library.
//
// Operations run in the order of a seeded generator among those in flight. Unflushed writes survive
// a crash sector by sector as the crash's own generator decides.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "nvme/drive/block_file.h"

namespace longshore {

// The bytes that a drive writes completely or not at all.
inline constexpr Bytes kSectorBytes = 512;

// SimRandom: a small fast generator (splitmix64) for choices of tests. Plain value.
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // Returns a number from 0 to count - 1.
  uint64_t below(uint64_t count) { return next() % count; }
  bool chance(double probability);

 private:
  uint64_t state_;
};

// SimEvent: one event of a medium's history, which a crash test replays.
struct SimEvent {
  enum class Kind : uint8_t { kWrite, kFlush };
  Kind kind = Kind::kWrite;
  Bytes offset = 0;
  std::vector<std::byte> data;  // data of a write
};

// SimFault: how one operation goes wrong.
struct SimFault {
  enum class Kind : uint8_t {
    kError,      // fails with `error_number`, nothing is moved
    kShort,      // moves only `bytes`
    kBitFlip,    // flips one bit of the bytes read or written
    kStale,      // reads what the sectors held before their last write
    kMisdirect,  // moves the bytes at offset + `shift` instead
    kLost,       // a write or a flush that reports success and does nothing
    kDelay,      // completes after all others in flight
  };
  Kind kind = Kind::kError;
  int error_number = 0;
  Bytes bytes = 0;
  Bytes shift = 0;
};

// Called for every operation; `index` counts them from 0.
using SimInjector = std::function<std::optional<SimFault>(int64_t index, const BlockOp& op)>;

class SimMedium {
 public:
  explicit SimMedium(Bytes size_bytes);
  // Makes a medium with the contents after a crash.
  explicit SimMedium(std::vector<std::byte> image);

  Bytes size_bytes() const { return static_cast<Bytes>(now_.size()); }
  // Returns the bytes that a read returns.
  const std::vector<std::byte>& now() const { return now_; }
  // Flips a bit silently.
  void flip_bit(Bytes offset, int bit);
  // Returns the bytes after power loss: the flushed bytes, and of the later writes a random subset
  // of their sectors in random order.
  std::vector<std::byte> crash(SimRandom& random) const;
  // Appends events to `trace` from now on; nullptr ends it.
  void record(std::vector<SimEvent>* trace) { trace_ = trace; }

  void write(Bytes offset, std::span<const std::byte> data);
  void read(Bytes offset, std::span<std::byte> into, bool stale) const;
  void flush();

 private:
  std::vector<std::byte> now_;
  std::vector<std::byte> before_;   // each sector before its last write
  std::vector<std::byte> durable_;  // at the last flush
  std::vector<SimEvent> unflushed_;
  std::vector<SimEvent>* trace_ = nullptr;
};

struct SimOptions {
  uint64_t seed = 1;
  int depth = 8;
  // Completes operations in order of submission instead of a random order.
  bool in_order = false;
  SimInjector inject = {};  // may be empty
};

class SimFile final : public BlockFile {
 public:
  // `medium` must outlive the file.
  SimFile(SimMedium* medium, std::string path, SimOptions options);

  const std::string& path() const override { return path_; }
  std::string_view kind() const override { return "simulated"; }
  Bytes size_bytes() const override { return medium_->size_bytes(); }
  int depth() const override { return options_.depth; }
  void submit(const BlockOp& op) override;
  void reap(std::vector<BlockCompletion>& completions) override;
  void pause(std::chrono::microseconds) override {}

  int64_t operations() const { return operations_; }

 private:
  struct Pending {
    BlockOp op;
    std::optional<SimFault> fault;
  };
  size_t choose();
  int64_t perform(const BlockOp& op, const std::optional<SimFault>& fault);
  int64_t move(const BlockOp& op, Bytes offset, const SimFault* fault);

  SimMedium* medium_;
  std::string path_;
  SimOptions options_;
  SimRandom random_;
  std::vector<Pending> pending_;
  int64_t operations_ = 0;
};

// Returns faults that a correct reader and writer survives without loss: short transfers, EINTR,
// EAGAIN, ECANCELED, delays; each operation with the given probability.
SimInjector harmless_faults(uint64_t seed, double probability);

}  // namespace longshore
