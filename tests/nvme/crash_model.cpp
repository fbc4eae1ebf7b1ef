#include "tests/nvme/crash_model.h"

#include <algorithm>
#include <cstring>

#include "base/quiet_log.h"

namespace longshore {
namespace {

void serial_for(int64_t count, const std::function<void(int64_t)>& work) {
  for (int64_t i = 0; i < count; ++i) work(i);
}

constexpr Bytes kChunkBytes = kBlockBytes;
// With more unflushed sectors than this, subsets are sampled.
constexpr size_t kMaxEnumerated = 6;

// ---- Drives, faulty ones too ----

class MutantDrive final : public Drive {
 public:
  MutantDrive(std::unique_ptr<BlockFile> file, const StripeMap* map, int index, Mutation mutation)
      : inner_(std::move(file), kChunkBytes), map_(map), index_(index), mutation_(mutation) {}

  const std::string& path() const override { return inner_.path(); }
  Bytes size_bytes() const override { return inner_.size_bytes(); }
  std::string_view kind() const override { return inner_.kind(); }
  void start(Transfer& transfer) override {
    transfer.offset = mapped(transfer.offset);
    if (is_dropped(transfer)) {
      transfer.done = true;
      transfer.failure = {};
      return;
    }
    if (transfer.kind == BlockOp::Kind::kWrite) {
      manifest_written_ = transfer.offset < kManifestAreaBytes;
      data_written_ = !manifest_written_;
    }
    inner_.start(transfer);
  }
  void wait(Transfer& transfer) override { inner_.wait(transfer); }

 private:
  Bytes mapped(Bytes offset) const {
    if (mutation_ == Mutation::kSingleManifest && offset == kManifestStride) return 0;
    if (mutation_ != Mutation::kInPlaceSlot || offset < kManifestAreaBytes) return offset;
    if (offset == map_->table_offset(index_, 1)) return map_->table_offset(index_, 0);
    for (const ChunkPlace& chunk : map_->chunks()) {
      if (chunk.drive == index_ && chunk.offsets[1] == offset) return chunk.offsets[0];
    }
    return offset;
  }

  bool is_dropped(const Transfer& transfer) {
    if (transfer.kind == BlockOp::Kind::kFlush) {
      const bool after_manifest = mutation_ == Mutation::kNoFlushAfterManifest;
      const bool after_data =
          mutation_ == Mutation::kNoChecksum || mutation_ == Mutation::kNoFirstFlush;
      const bool at_start =
          mutation_ == Mutation::kNoFlushAtStart && !manifest_written_ && !data_written_;
      return at_start || (after_manifest && manifest_written_) || (after_data && data_written_);
    }
    const bool voids = transfer.kind == BlockOp::Kind::kWrite &&
                       transfer.offset < kManifestAreaBytes && transfer.memory[0] == std::byte{0};
    return voids && (mutation_ == Mutation::kNoIncarnation || mutation_ == Mutation::kOnlyNoVoid);
  }

  InlineDrive inner_;
  const StripeMap* map_;
  int index_;
  Mutation mutation_;
  bool manifest_written_ = false;
  bool data_written_ = false;
};

// ---- The state after a crash, and the checks of it ----

struct DriveState {
  std::vector<std::byte> durable;
  std::vector<SimEvent> pending;  // writes that were not flushed
};

// Floor: the newest commit that is known to be acknowledged.
struct Floor {
  int64_t sequence = -1;
  std::string life;  // the life that wrote its data
};

struct World {
  std::vector<std::vector<DriveState>> ranks;  // [rank][drive]
  Floor floor;
};

// RankProcess: the drives as one rank's process sees them.
struct RankProcess {
  std::vector<std::unique_ptr<SimMedium>> media;
  std::vector<std::unique_ptr<MutantDrive>> drives;
  std::vector<Drive*> tied;
  std::unique_ptr<VersionedChunks> chunks;
  std::unique_ptr<VersionLog> log;  // for recoveries without checks
  std::unique_ptr<Recovery> recovery;
  BlockBuffer window{4 * kChunkBytes};
  // The events of each drive in order, and how far each drive was at each agreement.
  std::vector<std::vector<SimEvent>> traces;
  std::vector<std::vector<size_t>> arrivals;  // [agreement][drive]
};

void fill_content(std::span<std::byte> memory, uint64_t life, uint64_t version, int rank,
                  int part) {
  SimRandom random(life * 1000003 + version * 101 + static_cast<uint64_t>(rank * 11 + part));
  for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
    const uint64_t value = random.next();
    std::memcpy(memory.data() + i, &value, sizeof(value));
  }
}

class Enumeration {
 public:
  explicit Enumeration(const CrashOptions& options)
      : options_(options), map_(make_map(options.drives)), random_(options.seed) {}

  CrashReport run() {
    World fresh;
    fresh.ranks.resize(static_cast<size_t>(options_.ranks));
    for (auto& rank : fresh.ranks) {
      for (int drive = 0; drive < options_.drives; ++drive) {
        rank.push_back({std::vector<std::byte>(static_cast<size_t>(map_.file_bytes(drive))), {}});
      }
    }
    live(fresh, 0);
    return report_;
  }

 private:
  // Life: the moments of one life, from its recorded traces.
  struct Life {
    World start;
    std::vector<RankProcess> ranks;
    std::vector<Floor> floors;  // by agreement: what is acknowledged once all have arrived
  };

  static StripeMap make_map(int drives) {
    Geometry geometry;
    geometry.chunk_bytes = kChunkBytes;
    for (int i = 0; i < drives; ++i) geometry.weights[static_cast<size_t>(i)] = 1;
    return {{{"frozen", kBlockBytes, false},
             {"first", kBlockBytes, true},
             {"second", kBlockBytes, true}},
            geometry,
            drives};
  }

  RankProcess start_process(const std::vector<DriveState>& drives, int rank, uint64_t seed,
                            bool traced) {
    RankProcess process;
    process.traces.resize(drives.size());
    for (size_t i = 0; i < drives.size(); ++i) {
      process.media.push_back(std::make_unique<SimMedium>(drives[i].durable));
      for (const SimEvent& event : drives[i].pending) {
        process.media[i]->write(event.offset, event.data);
      }
      if (traced) process.media[i]->record(&process.traces[i]);
      process.drives.push_back(std::make_unique<MutantDrive>(
          std::make_unique<SimFile>(process.media[i].get(), "sim", SimOptions{.seed = seed}), &map_,
          static_cast<int>(i), options_.mutation));
      process.tied.push_back(process.drives.back().get());
    }
    const RunKey run = {{1, 2}};
    process.chunks = std::make_unique<VersionedChunks>(process.tied, &map_, run, rank,
                                                       options_.ranks, serial_for);
    const bool constant = options_.mutation == Mutation::kNoIncarnation ||
                          options_.mutation == Mutation::kOnlyNoIncarnation;
    const uint64_t random = constant ? 42 : seed;
    if (options_.mutation == Mutation::kNoChecksum) {
      process.log = std::make_unique<VersionLog>(
          process.tied,
          LogIdentity{run, rank, options_.ranks, map_.layout_hash(), map_.geometry()});
      process.recovery = std::make_unique<Recovery>(
          process.log.get(), [](const LoggedPoint&) { return true; }, random);
    } else {
      process.recovery =
          std::make_unique<Recovery>(process.chunks->make_recovery(process.window.bytes(), random));
    }
    return process;
  }

  std::vector<RankProcess> start_all(const World& world, bool traced) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      ranks.push_back(
          start_process(world.ranks[static_cast<size_t>(rank)], rank, random_.next(), traced));
    }
    while (!ranks[0].recovery->done()) {
      std::vector<Ballot> ballots;
      for (RankProcess& rank : ranks) ballots.push_back(rank.recovery->question());
      const Outcome outcome = agree(ranks, ballots);
      for (RankProcess& rank : ranks) rank.recovery->answer(outcome);
    }
    for (RankProcess& rank : ranks) rank.chunks->begin(*rank.recovery);
    return ranks;
  }

  static Outcome agree(std::vector<RankProcess>& ranks, const std::vector<Ballot>& ballots) {
    Outcome outcome = {ballots[0], ballots[0]};
    for (const Ballot& ballot : ballots) {
      for (size_t i = 0; i < ballot.size(); ++i) {
        outcome.least[i] = std::min(outcome.least[i], ballot[i]);
        outcome.greatest[i] = std::max(outcome.greatest[i], ballot[i]);
      }
    }
    for (RankProcess& rank : ranks) {
      std::vector<size_t> arrival;
      for (const auto& trace : rank.traces) arrival.push_back(trace.size());
      rank.arrivals.push_back(std::move(arrival));
    }
    return outcome;
  }

  void fail(int64_t& counter, const std::string& what) {
    ++counter;
    if (report_.first.empty()) report_.first = what;
  }

  // Returns whether the world recovers correctly; counts one state.
  bool check(const World& world) {
    ++report_.states;
    std::vector<RankProcess> ranks;
    try {
      ranks = start_all(world, false);
    } catch (const CheckpointError& error) {
      if (world.floor.sequence < 0) return true;
      fail(report_.lost, error.what());
      return false;
    }
    const auto& point = ranks[0].chunks->committed();
    if (!point) {
      if (world.floor.sequence < 0) return true;
      fail(report_.lost, "nothing found, " + std::to_string(world.floor.sequence) + " was there");
      return false;
    }
    const auto found = static_cast<int64_t>(point->sequence);
    if (found < world.floor.sequence) {
      fail(report_.lost, "found " + std::to_string(found) + ", acknowledged was " +
                             std::to_string(world.floor.sequence));
      return false;
    }
    if (found == world.floor.sequence && point->note != world.floor.life) {
      fail(report_.lost, "another history's commit " + std::to_string(found));
      return false;
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (holds(ranks[static_cast<size_t>(rank)], rank, *point)) continue;
      fail(report_.corrupt, "rank " + std::to_string(rank) + " holds something else as commit " +
                                std::to_string(found));
      return false;
    }
    return true;
  }

  // Returns whether all bytes are of the life that the commit's payload names.
  bool holds(const RankProcess& process, int rank, const CommitPoint& point) {
    const auto& mine = process.chunks->committed();
    if (!mine || mine->note != point.note || mine->sequence != point.sequence) return false;
    for (const ChunkPlace& chunk : map_.chunks()) {
      const bool versioned = map_.part(chunk.part).versioned;
      BlockBuffer expected(chunk.bytes);
      const uint64_t life = versioned ? std::stoull(point.note) : 0;
      fill_content(expected.bytes(), life, versioned ? point.version : 0, rank, chunk.part);
      Bytes offset = chunk.offsets[static_cast<size_t>(point.slot())];
      if (options_.mutation == Mutation::kInPlaceSlot) offset = chunk.offsets[0];
      const auto& bytes = process.media[static_cast<size_t>(chunk.drive)]->now();
      if (std::memcmp(bytes.data() + offset, expected.bytes().data(),
                      static_cast<size_t>(chunk.bytes)) != 0) {
        return false;
      }
    }
    return true;
  }

  void write_version(RankProcess& process, int rank, uint64_t life, uint64_t version) {
    for (int part = 0; part < map_.part_count(); ++part) {
      const bool versioned = map_.part(part).versioned;
      if (!versioned && process.chunks->committed()) continue;
      const BlockBuffer memory(map_.part(part).bytes);
      fill_content(memory.bytes(), versioned ? life : 0, versioned ? version : 0, rank, part);
      PartIo io;
      SealedPart sealed;
      process.chunks->seal(part, memory.bytes(), sealed);
      process.chunks->start_write(sealed, io);
      process.chunks->finish_write(io);
    }
  }

  // Commits once; every fourth commit is a skipped step.
  void commit_once(Life& life, uint64_t life_id, int64_t index) {
    const auto before = life.ranks[0].chunks->committed();
    const bool skips = before && index % 4 == 3;
    const uint64_t version = before ? before->version + 1 : 0;
    const std::string note = skips ? before->note : std::to_string(life_id);
    std::vector<Ballot> ballots;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      RankProcess& process = life.ranks[static_cast<size_t>(rank)];
      if (!skips) write_version(process, rank, life_id, version);
      ballots.push_back({process.chunks->prepare_commit({index, note}), 0, 0, 0});
    }
    const Outcome outcome = agree(life.ranks, ballots);
    for (RankProcess& process : life.ranks) process.chunks->conclude_commit(outcome.least[0]);
    life.floors.push_back({outcome.least[0], note});
  }

  void live(const World& world, int depth) {
    const uint64_t life_id = static_cast<uint64_t>(++report_.lives);
    Life life;
    life.start = world;
    try {
      life.ranks = start_all(world, true);
    } catch (const CheckpointError&) {
      return;  // `check` has examined this world
    }
    // During recovery the earlier acknowledged commit counts; after it, the recovered one.
    life.floors.assign(life.ranks[0].arrivals.size(), world.floor);
    const auto& point = life.ranks[0].chunks->committed();
    if (point) life.floors.back() = {static_cast<int64_t>(point->sequence), point->note};
    const int commits = depth == 0 ? options_.commits : 2;
    for (int i = 0; i < commits; ++i) {
      const auto& now = life.ranks[0].chunks->committed();
      commit_once(life, life_id, now ? static_cast<int64_t>(now->sequence) + 1 : 0);
    }
    crash_everywhere(life, depth);
  }

  // ---- Moments ----

  // Moment: how far each drive of each rank got.
  using Moment = std::vector<std::vector<size_t>>;

  // Drives of a rank meet before each agreement. Between agreements each advances on its own, but a
  // flush of all drives ends before the next write begins.
  static bool is_possible(const Life& life, const Moment& moment) {
    for (size_t k = 0; k < life.ranks[0].arrivals.size(); ++k) {
      bool someone_passed = false;
      bool all_arrived = true;
      for (size_t r = 0; r < moment.size(); ++r) {
        for (size_t d = 0; d < moment[r].size(); ++d) {
          const size_t arrival = life.ranks[r].arrivals[k][d];
          someone_passed = someone_passed || moment[r][d] > arrival;
          all_arrived = all_arrived && moment[r][d] >= arrival;
        }
      }
      if (someone_passed && !all_arrived) return false;
    }
    for (size_t r = 0; r < moment.size(); ++r) {
      if (!flushes_agree(life.ranks[r], moment[r])) return false;
    }
    return true;
  }

  // Progress: how far a drive is, in flushes.
  struct Progress {
    size_t flushes = 0;
    bool wrote_since = false;
    bool all_written = false;  // the next event is a flush
  };
  static Progress progress_of(const std::vector<SimEvent>& trace, size_t reached) {
    Progress progress;
    for (size_t i = 0; i < reached; ++i) {
      progress.wrote_since = trace[i].kind == SimEvent::Kind::kWrite;
      if (!progress.wrote_since) ++progress.flushes;
    }
    progress.all_written = reached < trace.size() && trace[reached].kind == SimEvent::Kind::kFlush;
    return progress;
  }

  // The drives of a rank are flushed after all writes are done; writes continue after all flushes.
  static bool flushes_agree(const RankProcess& process, const std::vector<size_t>& reached) {
    for (size_t d = 0; d < reached.size(); ++d) {
      const Progress mine = progress_of(process.traces[d], reached[d]);
      for (size_t e = 0; e < reached.size(); ++e) {
        const Progress other = progress_of(process.traces[e], reached[e]);
        if (other.flushes >= mine.flushes) continue;
        const bool is_flushing = other.flushes + 1 == mine.flushes && other.all_written;
        if (mine.wrote_since || !is_flushing) return false;
      }
    }
    return true;
  }

  Floor floor_of(const Life& life, const Moment& moment) const {
    Floor floor = life.start.floor;
    for (size_t k = 0; k < life.floors.size(); ++k) {
      bool all_arrived = true;
      for (size_t r = 0; r < moment.size(); ++r) {
        for (size_t d = 0; d < moment[r].size(); ++d) {
          const size_t early = options_.mutation == Mutation::kAcknowledgeEarly ? 1 : 0;
          all_arrived = all_arrived && moment[r][d] + early >= life.ranks[r].arrivals[k][d];
        }
      }
      if (all_arrived) floor = life.floors[k];
    }
    return floor;
  }

  static DriveState state_at(const DriveState& start, const std::vector<SimEvent>& trace,
                             size_t reached) {
    DriveState state = start;
    for (size_t i = 0; i < reached; ++i) {
      if (trace[i].kind == SimEvent::Kind::kWrite) {
        state.pending.push_back(trace[i]);
        continue;
      }
      for (const SimEvent& event : state.pending) apply(state.durable, event, 0, event.data.size());
      state.pending.clear();
    }
    return state;
  }

  static void apply(std::vector<std::byte>& image, const SimEvent& event, size_t begin,
                    size_t bytes) {
    std::memcpy(image.data() + event.offset + begin, event.data.data() + begin, bytes);
  }

  void crash_everywhere(const Life& life, int depth) {
    Moment moment(life.ranks.size(), std::vector<size_t>(static_cast<size_t>(options_.drives), 0));
    std::vector<std::pair<size_t, size_t>> dials;
    for (size_t r = 0; r < moment.size(); ++r) {
      for (size_t d = 0; d < moment[r].size(); ++d) dials.emplace_back(r, d);
    }
    turn(life, moment, dials, 0, depth);
  }

  // Tries all settings of the dials, each from nothing to the whole trace.
  void turn(const Life& life, Moment& moment, const std::vector<std::pair<size_t, size_t>>& dials,
            size_t dial, int depth) {
    if (dial == dials.size()) {
      if (is_possible(life, moment)) crash_at(life, moment, depth);
      return;
    }
    const auto [rank, drive] = dials[dial];
    for (size_t i = 0; i <= life.ranks[rank].traces[drive].size() && !stopped(); ++i) {
      moment[rank][drive] = i;
      turn(life, moment, dials, dial + 1, depth);
    }
  }

  void crash_at(const Life& life, const Moment& moment, int depth) {
    World left;
    left.floor = floor_of(life, moment);
    size_t sectors = 0;
    for (size_t r = 0; r < moment.size(); ++r) {
      left.ranks.emplace_back();
      for (size_t d = 0; d < moment[r].size(); ++d) {
        left.ranks[r].push_back(
            state_at(life.start.ranks[r][d], life.ranks[r].traces[d], moment[r][d]));
        for (const SimEvent& event : left.ranks[r][d].pending) {
          sectors += event.data.size() / static_cast<size_t>(kSectorBytes);
        }
      }
    }
    // The process is killed, and the drives keep what they were given.
    go_on(left, depth, options_.next_life_every / 10 + 1);
    const uint64_t all = sectors <= kMaxEnumerated ? uint64_t{1} << sectors : 0;
    const uint64_t tries = all > 0 ? all : static_cast<uint64_t>(options_.subsets);
    for (uint64_t i = 0; i < tries; ++i) {
      if (stopped()) return;
      go_on(lose_power(left, all > 0 ? std::optional(i) : std::nullopt), depth,
            options_.next_life_every);
    }
  }

  void go_on(const World& world, int depth, int one_in) {
    if (stopped() || !check(world) || depth >= options_.depth) return;
    if (random_.below(static_cast<uint64_t>(one_in)) == 0) live(world, depth + 1);
  }

  // A mutation is caught by its first failure.
  bool stopped() const {
    return options_.mutation != Mutation::kNone && report_.lost + report_.corrupt > 0;
  }

  // Loses power with a numbered or random subset of sectors, or a random subset of whole writes.
  World lose_power(const World& world, std::optional<uint64_t> subset) {
    World left;
    left.floor = world.floor;
    const double kept = 0.1 + 0.2 * static_cast<double>(random_.below(5));
    const bool whole_writes = random_.below(3) == 0;
    uint64_t bit = 0;
    for (const auto& drives : world.ranks) {
      // Another machine may only have been killed.
      if (!subset && world.ranks.size() > 1 && random_.below(4) == 0) {
        left.ranks.push_back(drives);
        continue;
      }
      left.ranks.emplace_back();
      for (const DriveState& drive : drives) {
        DriveState after{drive.durable, {}};
        for (const SimEvent& event : drive.pending) {
          const bool keeps = random_.chance(kept);
          for (size_t at = 0; at < event.data.size(); at += static_cast<size_t>(kSectorBytes)) {
            bool survives = whole_writes ? keeps : random_.chance(kept);
            if (subset) survives = (*subset >> bit++ & 1) != 0;
            if (survives) apply(after.durable, event, at, static_cast<size_t>(kSectorBytes));
          }
        }
        left.ranks.back().push_back(std::move(after));
      }
    }
    return left;
  }

  CrashOptions options_;
  StripeMap map_;
  SimRandom random_;
  CrashReport report_;
};

}  // namespace

CrashReport enumerate_crashes(const CrashOptions& options) {
  const QuietLog quiet;
  return Enumeration(options).run();
}

}  // namespace longshore
