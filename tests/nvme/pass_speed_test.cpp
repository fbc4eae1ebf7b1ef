// Measures how fast an update of all units streams through the store on a real drive, the drive's
// own speed, and the bytes that the kernel counts. It prints speeds and asserts bytes only.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "nvme/probe/drive_probe.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/scratch_file.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

// Returns a model as large as a small run's: 16 blocks of 4 matrices.
ModelSpec wide_model() {
  ModelSpec model;
  for (int i = 0; i < 16; ++i) {
    UnitSpec unit;
    unit.id = UnitId(i);
    unit.name = "block." + std::to_string(i);
    for (int m = 0; m < 4; ++m) {
      unit.parameters.push_back(
          fakes::make_parameter(unit.name + "." + std::to_string(m), {1024, 1024}));
    }
    if (i < 15) unit.carry_out = {{1024}};
    model.units.push_back(std::move(unit));
  }
  return model;
}

// Returns the bytes that this process wrote to drives, as the kernel counts them.
Bytes kernel_written() {
  std::ifstream io("/proc/self/io");
  std::string key;
  Bytes value = 0;
  while (io >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Changes every byte that an update changes, at the speed of memory.
void update_all(NvmeStore& store, const std::vector<FlatLayout>& layouts, WorkerPool& pool) {
  constexpr size_t kBlock = size_t{1} << 18;
  for (size_t u = 0; u < layouts.size(); ++u) {
    const auto state = store.state(UnitId(static_cast<int32_t>(u)));
    const StateSpans spans = state->segment(Segment::kQuantisedMoments);
    for (const std::span<std::byte> bytes :
         {std::as_writable_bytes(spans.master), std::as_writable_bytes(spans.high),
          std::as_writable_bytes(spans.low), spans.regions[0].values, spans.regions[1].values,
          std::as_writable_bytes(spans.regions[0].units),
          std::as_writable_bytes(spans.regions[1].units)}) {
      const size_t blocks = (bytes.size() + kBlock - 1) / kBlock;
      pool.for_each_block(static_cast<int64_t>(blocks), [&](int64_t block) {
        const size_t begin = static_cast<size_t>(block) * kBlock;
        const size_t end = std::min(begin + kBlock, bytes.size());
        for (size_t i = begin; i < end; ++i) bytes[i] ^= std::byte{5};
      });
    }
  }
}

struct Pass {
  StateFormat format;
  bool parameters_on_drives;
  double bytes_written;  // per parameter
};

// An update pass writes the planned bytes; its speed is printed.
TEST(LongNvmeStoreSpeed, OfAnUpdatePass) {
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(wide_model(), 1, DType::kBF16);
  Bytes elements = 0;
  for (const FlatLayout& layout : layouts) elements += layout.trainable_elements();
  const ScratchDirectory directory;
  DriveProbe probe(directory.path(), kGiB, IoEngine::kAuto);
  constexpr double kScales = 2.0 * sizeof(float) / kMomentBlockElements;
  const std::vector<Pass> passes = {{StateFormat::kSplit, false, 12.0},
                                    {StateFormat::kSplit, true, 12.0},
                                    {StateFormat::kFp32, false, 12.0},
                                    {StateFormat::kSplitBf16, false, 8.0},
                                    {StateFormat::kSplitInt8, false, 6.0 + kScales}};
  for (const auto& [format, on_drives, expected] : passes) {
    NvmeStoreOptions options;
    options.state.format = format;
    options.parameters_on_drives = on_drives;
    options.geometry.weights[0] = 1;
    StateFileOptions files;
    const ScratchDirectory state;
    files.directories = {state.path()};
    NvmeStore store(
        layouts, options,
        [&](const StripeMap& map, std::span<std::byte> window) {
          return open_state_files(files, map, window);
        },
        &pool);
    store.start(solo, 1);
    for (int64_t step = 0; step < 2; ++step) {  // both slots, because unwritten extents are slower
      update_all(store, layouts, pool);
      store.commit({step, ""}, solo);
    }
    std::vector<DriveSpeed> reads;
    std::vector<DriveSpeed> writes;
    double pass = 0.0;
    constexpr int kPasses = 5;
    Bytes kernel = 0;
    for (int i = 0; i < kPasses; ++i) {
      reads.push_back(probe.measure(BlockOp::Kind::kRead, {}, 0.5));
      writes.push_back(probe.measure(BlockOp::Kind::kWrite, {}, 0.5));
      const Bytes before = kernel_written();
      pass += seconds_of([&] {
        update_all(store, layouts, pool);
        store.commit({2 + i, ""}, solo);
      });
      kernel += kernel_written() - before;
    }
    pass /= kPasses;
    const DriveTraffic traffic = planned_update(layouts, options);
    const double bound =
        static_cast<double>(traffic.read) * 1e-9 / median_of(reads).gb_per_second +
        static_cast<double>(traffic.written) * 1e-9 / median_of(writes).gb_per_second;
    const double written = static_cast<double>(kernel) / kPasses / static_cast<double>(elements);
    std::printf(
        "%s, parameters on %s: %.1f M parameters, read %.2f GB, written %.2f GB, pass %.3f s;"
        " drive alone, one direction after the other, %.3f s (%.0f %%); kernel: %.4f bytes"
        " written for each parameter\n",
        std::string(name_of(format)).c_str(), on_drives ? "drives" : "host",
        static_cast<double>(elements) * 1e-6, static_cast<double>(traffic.read) * 1e-9,
        static_cast<double>(traffic.written) * 1e-9, pass, bound, 100.0 * bound / pass, written);
    EXPECT_GE(written, expected);
    EXPECT_LE(written, expected * 1.005);
  }
}

}  // namespace
}  // namespace longshore
