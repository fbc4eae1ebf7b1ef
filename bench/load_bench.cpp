// bench_load FOLDER [UNITS] [ROUNDS] [THREADS]: speed of loading a model's weights to host memory.
// Writes a safetensors file of UNITS tensors of 64 Mi bf16 values, 128 MiB each. Each round reads
// the file past the page cache in pieces of 8 MiB (the drive's rate), then loads the file and makes
// random values, on one thread and on all. The file is dropped from the page cache before each read
// and load. Prints GB/s of the file, and medians.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "hf/safetensors_writer.h"
#include "hf/weight_loader.h"
#include "model/families/random_init.h"
#include "pinned/pinned_store.h"
#include "shard/load_parameters.h"
#include "tests/fakes/sweep_in_order.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 16384, kColumns = 4096;
constexpr InitSpec kInit{.kind = InitSpec::Kind::kNormal, .standard_deviation = 0.02};

ModelSpec make_spec(int units) {
  ModelSpec model;
  for (int i = 0; i < units; ++i) {
    UnitSpec unit;
    unit.id = UnitId(i);
    unit.name = "block." + std::to_string(i);
    ParamSpec parameter;
    parameter.name = unit.name + ".weight";
    parameter.shape = {kRows, kColumns};
    unit.parameters.push_back(parameter);
    model.units.push_back(unit);
  }
  return model;
}

void write_weights(const ModelSpec& model, const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const UnitSpec& unit : model.units) {
    tensors.push_back({unit.parameters[0].name, TensorDType::kBF16, unit.parameters[0].shape});
  }
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  const std::vector<uint16_t> row(static_cast<size_t>(kColumns), 0x3c9a);
  for (int64_t i = 0; i < kRows * static_cast<int64_t>(model.units.size()); ++i) {
    writer.append(bytes_of(std::span<const uint16_t>(row)));
  }
  writer.finish();
}

void drop_from_cache(const std::string& path) {
  const UniqueFd fd = open_for_reading(path);
  LONGSHORE_CHECK(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
}

void read_directly(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC), path);
  if (!fd.valid()) throw IoError("open", path, errno);
  constexpr size_t kPiece = 8 * static_cast<size_t>(kMiB);
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, kPiece),
                                                           std::free);
  while (true) {
    const ssize_t got = ::read(fd.get(), memory.get(), kPiece);
    if (got < 0) throw IoError("read", path, errno);
    if (got < static_cast<ssize_t>(kPiece)) return;
  }
}

class Times {
 public:
  // Measures GB/s: `bytes` over the time of `work`.
  template <typename Work>
  void measure(const std::string& name, double bytes, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    rates_[name].push_back(bytes / time.count() / 1e9);
    std::printf("%-24s %6.2f GB/s\n", name.c_str(), rates_[name].back());
    std::fflush(stdout);
  }
  void print_medians() {
    for (auto& [name, rates] : rates_) {
      std::ranges::sort(rates);
      std::printf("median: %-24s %6.2f GB/s\n", name.c_str(), rates[rates.size() / 2]);
    }
  }

 private:
  std::map<std::string, std::vector<double>> rates_;
};

void run(const std::string& folder, int units, int rounds, int threads) {
  const ModelSpec model = make_spec(units);
  const std::string path = folder + "/bench_load.safetensors";
  write_weights(model, path);
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  const SafetensorsFile file = SafetensorsFile::open(path);
  const StateOptions options;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, options.compute);
  WorkerPool pool(threads);
  PinnedStore store(layouts, options, false, &pool);
  const auto load = [&](const ParameterReader& read, const ForEachBlock& each_block) {
    load_parameters(sweep_in_order(store, model), model, layouts, Rank(0), read, each_block);
  };
  const ForEachBlock on_all = [&pool](int64_t blocks, const auto& work) {
    pool.for_each_block(blocks, work);
  };
  const ParameterReader from_file = [&file](const std::string& name, int64_t begin,
                                            std::span<float> out) {
    read_elements(file, file.tensor(name), begin, out);
  };
  const ParameterReader random = [](const std::string& name, int64_t begin, std::span<float> out) {
    fill_random(name, kInit, 42, begin, out);
  };
  Times times;
  for (int round = 0; round < rounds; ++round) {
    drop_from_cache(path);
    times.measure("drive", bytes, [&] { read_directly(path); });
    for (const bool all : {false, true}) {
      const ForEachBlock each_block = all ? on_all : for_each_block_in_order;
      const std::string on = all ? ", all threads" : ", one thread";
      drop_from_cache(path);
      times.measure("file" + on, bytes, [&] { load(from_file, each_block); });
      times.measure("random" + on, bytes, [&] { load(random, each_block); });
    }
  }
  times.print_medians();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_load FOLDER [UNITS] [ROUNDS] [THREADS]\n");
    return 2;
  }
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  longshore::run(argv[1], number(2, 16), number(3, 5),
                 number(4, static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))));
  return 0;
}
