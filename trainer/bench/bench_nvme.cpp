#include "trainer/bench/bench_nvme.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include "base/direct_reader.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/measurement.h"
#include "device/copy_speed.h"
#include "device/cuda_device.h"
#include "hf/model_directory.h"
#include "nvme/probe/drive_probe.h"

namespace longshore {
namespace {

// A fifth of the time is a search for settings, the rest are rounds that alternate with fio's.
constexpr int kDriveRounds = 5;
constexpr double kSearchShare = 0.2;

struct Direction {
  DriveSpeed ours;
  std::optional<DriveSpeed> fio;
  std::string fio_engine;
};

struct Report {
  std::string directory;
  std::string engine;
  DriveSettings settings;
  Direction read;
  Direction write;
};

// Alternates our rounds with fio's, because a drive's speed drifts, and takes fio's best median.
Direction measure_direction(DriveProbe& probe, BlockOp::Kind kind, const DriveSettings& settings,
                            double seconds, bool with_fio) {
  std::vector<std::string> engines;
  if (with_fio) engines = {"io_uring", "libaio"};
  std::vector<DriveSpeed> ours;
  std::vector<std::vector<DriveSpeed>> theirs(engines.size());
  for (int round = 0; round < kDriveRounds; ++round) {
    ours.push_back(probe.measure(kind, settings, seconds));
    for (size_t i = 0; i < engines.size(); ++i) {
      const auto speed = measure_fio(probe.path(), kind, engines[i], settings, seconds);
      if (speed) theirs[i].push_back(*speed);
    }
  }
  Direction direction{median_of(ours), std::nullopt, ""};
  for (size_t i = 0; i < engines.size(); ++i) {
    if (theirs[i].empty()) continue;
    const DriveSpeed speed = median_of(theirs[i]);
    if (direction.fio && direction.fio->gb_per_second >= speed.gb_per_second) continue;
    direction.fio = speed;
    direction.fio_engine = engines[i];
  }
  return direction;
}

Report measure_directory(const std::string& directory, const BenchNvmeOptions& options,
                         bool with_fio) {
  DriveProbe probe(directory, options.file_bytes, IoEngine::kAuto);
  Report report;
  report.directory = directory;
  report.engine = probe.kind();
  report.settings = probe.find_settings(options.seconds * kSearchShare);
  report.read =
      measure_direction(probe, BlockOp::Kind::kRead, report.settings, options.seconds, with_fio);
  report.write =
      measure_direction(probe, BlockOp::Kind::kWrite, report.settings, options.seconds, with_fio);
  return report;
}

Json to_json(const Direction& direction) {
  Json json = {{"gb_per_second", direction.ours.gb_per_second},
               {"core_percent_per_gb_per_second", direction.ours.core_percent_per_gb}};
  if (direction.fio) {
    json["fio"] = {{"engine", direction.fio_engine},
                   {"gb_per_second", direction.fio->gb_per_second},
                   {"core_percent_per_gb_per_second", direction.fio->core_percent_per_gb}};
    json["share_of_fio"] = direction.ours.gb_per_second / direction.fio->gb_per_second;
  }
  return json;
}

void print_direction(const char* name, const Direction& direction) {
  print_out("  %-5s %6.2f GB/s, %5.1f %% of a core for each GB/s", name,
            direction.ours.gb_per_second, direction.ours.core_percent_per_gb);
  if (direction.fio) {
    print_out("; fio %s %.2f GB/s, %.1f %%: %.0f %% of fio", direction.fio_engine.c_str(),
              direction.fio->gb_per_second, direction.fio->core_percent_per_gb,
              100.0 * direction.ours.gb_per_second / direction.fio->gb_per_second);
  }
  print_out("\n");
}

void print(const Report& report) {
  print_out("%s: %s, chunks of %s, %d in flight\n", report.directory.c_str(), report.engine.c_str(),
            format_bytes(report.settings.chunk_bytes).c_str(), report.settings.depth);
  print_direction("read", report.read);
  print_direction("write", report.write);
}

// One thread reads this many bytes of a tensor at a time, as the tier does.
constexpr Bytes kFileChunkBytes = 4 * kMiB;
// The tier reads unit by unit, to two slots in turn; a block of a large model has this size.
constexpr Bytes kFileUnitBytes = 256 * kMiB;
constexpr Bytes kPlaceAlignment = 512;  // of parameters in a slot
constexpr std::array<int, 3> kFioDepths = {4, 16, 64};

// Chunk: what one thread reads at a time.
struct FileChunk {
  const SafetensorsFile* file = nullptr;
  const DirectReader* reader = nullptr;
  const TensorInfo* tensor = nullptr;
  Bytes begin = 0, bytes = 0;
  Bytes place = 0;  // in the slot
};

// ModelSweep: reads all tensors of a model once, past the page cache, to slots, and computes
// checksums of the bytes.
class ModelSweep {
 public:
  explicit ModelSweep(const std::string& model) : directory_(ModelDirectory::open(model)) {
    if (directory_.files().empty()) throw ConfigError(directory_.path() + ": has no weights");
    for (const auto& weights : directory_.files()) {
      readers_.push_back(std::make_unique<DirectReader>(weights->file.past_cache()));
      for (const TensorInfo& tensor : weights->file.tensors()) {
        for (Bytes done = 0; done < tensor.bytes; done += kFileChunkBytes) {
          add_chunk({&weights->file, readers_.back().get(), &tensor, done,
                     std::min(kFileChunkBytes, tensor.bytes - done)});
        }
        bytes_ += tensor.bytes;
      }
    }
    for (std::vector<std::byte>& slot : slots_) slot.resize(static_cast<size_t>(kFileUnitBytes));
  }

  Bytes bytes() const { return bytes_; }
  bool direct() const { return readers_.front()->direct(); }
  std::string largest_file() const {
    return (*std::ranges::max_element(directory_.files(), {},
                                      [](const auto& one) { return one->file.file_bytes(); }))
        ->file.path();
  }

  double gb_per_second() {
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<ReadingThreads::Reads> last;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const auto next = begin_reading(units_[unit], std::span(slots_[unit % slots_.size()]));
      if (last != nullptr) threads_.finish(*last);
      last = next;
    }
    threads_.finish(*last);
    return static_cast<double>(bytes_) * 1e-9 / seconds_since(begin);
  }

 private:
  // Puts the chunk after the last one, or begins a unit with it.
  void add_chunk(FileChunk chunk) {
    if (!units_.empty()) {
      const FileChunk& last = units_.back().back();
      chunk.place = align_up(last.place + last.bytes, kPlaceAlignment);
    }
    if (units_.empty() || chunk.place + chunk.bytes > kFileUnitBytes) {
      units_.emplace_back();
      chunk.place = 0;
    }
    units_.back().push_back(chunk);
  }

  std::shared_ptr<ReadingThreads::Reads> begin_reading(const std::vector<FileChunk>& unit,
                                                       std::span<std::byte> slot) {
    return threads_.begin(std::ssize(unit), [this, &unit, slot](int64_t i) {
      const FileChunk& chunk = unit[static_cast<size_t>(i)];
      const std::span<std::byte> place =
          slot.subspan(static_cast<size_t>(chunk.place), static_cast<size_t>(chunk.bytes));
      chunk.file->read(*chunk.tensor, chunk.begin, place, *chunk.reader);
      checksum_ ^= hash64(place);
    });
  }

  ModelDirectory directory_;
  std::vector<std::unique_ptr<DirectReader>> readers_;  // by file
  std::vector<std::vector<FileChunk>> units_;
  std::array<std::vector<std::byte>, 2> slots_;  // one is read while the other is in use
  std::atomic<uint64_t> checksum_ = 0;
  Bytes bytes_ = 0;
  ReadingThreads threads_;
};

// Returns the fastest reading of a file by fio, over engines and depths; 0 without fio.
double best_fio(const std::string& path, double seconds) {
  double best = 0.0;
  for (const char* const engine : {"io_uring", "libaio"}) {
    for (const int depth : kFioDepths) {
      const auto speed = measure_fio(path, BlockOp::Kind::kRead, engine,
                                     {.chunk_bytes = kMiB, .depth = depth}, seconds);
      if (speed) best = std::max(best, speed->gb_per_second);
    }
  }
  return best;
}

// Sizes from one parameter of a small model to a block of a large one.
const std::vector<Bytes> kCopyBytes = {4 * kMiB, 32 * kMiB, 256 * kMiB};
constexpr int kCopyRounds = 7;

}  // namespace

int run_bench_nvme(const BenchNvmeOptions& options) {
  const bool with_fio = fio_is_installed();
  Json all = Json::array();
  for (const std::string& directory : options.directories) {
    const Report report = measure_directory(directory, options, with_fio);
    if (!options.json) {
      print(report);
      continue;
    }
    all.push_back({{"directory", report.directory},
                   {"engine", report.engine},
                   {"chunk_bytes", report.settings.chunk_bytes},
                   {"depth", report.settings.depth},
                   {"read", to_json(report.read)},
                   {"write", to_json(report.write)}});
  }
  if (options.json) print_out("%s\n", all.dump(2).c_str());
  if (!options.json && !with_fio) print_out("fio is not installed: nothing to compare with\n");
  return 0;
}

int run_bench_files(const BenchFilesOptions& options) {
  ModelSweep sweep(options.model);
  const bool with_fio = fio_is_installed();
  std::vector<double> ours, theirs;
  for (int round = 0; round < options.rounds; ++round) {
    ours.push_back(sweep.gb_per_second());
    if (with_fio) theirs.push_back(best_fio(sweep.largest_file(), options.seconds));
  }
  const double speed = median_of(ours), fio = with_fio ? median_of(theirs) : 0.0;
  Json json = {{"bytes", sweep.bytes()}, {"direct", sweep.direct()}, {"gb_per_second", speed}};
  if (fio > 0.0) {
    json["fio_gb_per_second"] = fio;
    json["share_of_fio"] = speed / fio;
  }
  if (options.json) {
    print_out("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_out("%s, %s: %.2f GB/s", format_bytes(sweep.bytes()).c_str(),
            sweep.direct() ? "direct I/O" : "through the page cache", speed);
  if (fio > 0.0) print_out("; fio %.2f GB/s: %.0f %% of fio", fio, 100.0 * speed / fio);
  print_out("\n");
  if (!with_fio) print_out("fio is not installed: nothing to compare with\n");
  return 0;
}

int run_bench_copies(const BenchCopiesOptions& options) {
  prepare_cuda(options.gpu);
  const auto speeds = measure_copy_speeds(options.gpu, kCopyBytes, kCopyRounds);
  Json rows = Json::array();
  for (const CopySpeed& speed : speeds) {
    const double share = speed.gb_per_second / speed.best_gb_per_second;
    rows.push_back({{"direction", speed.direction},
                    {"copy_bytes", speed.bytes},
                    {"gb_per_second", speed.gb_per_second},
                    {"best_cudamemcpy_gb_per_second", speed.best_gb_per_second},
                    {"share_of_best", share}});
    if (options.json) continue;
    print_out("%s, copies of %s: %.2f GB/s, %.1f %% of the best cudaMemcpyAsync (%.2f)\n",
              speed.direction.c_str(), format_bytes(speed.bytes).c_str(), speed.gb_per_second,
              100.0 * share, speed.best_gb_per_second);
  }
  if (options.json) print_out("%s\n", Json({{"rows", rows}}).dump(2).c_str());
  return 0;
}

}  // namespace longshore
