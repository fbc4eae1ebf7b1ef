// How fast an update of all units streams through the store on a real drive, beside what the drive
// gives alone, and how many bytes the kernel counts for it. Prints figures, judges bytes only.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "nvme/drive_probe.h"
#include "nvme/nvme_store.h"
#include "nvme/state_files.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

// As large as a small run's: 16 blocks of 4 matrices.
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

// Bytes that this process caused to be written to drives, as the kernel counts them.
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

void update_all(NvmeStore& store, const std::vector<FlatLayout>& layouts, WorkerPool& pool,
                float step) {
  for (size_t u = 0; u < layouts.size(); ++u) {
    const auto state = store.state(UnitId(static_cast<int32_t>(u)));
    const StateSpans spans = state->segment(Segment::kQuantisedMoments);
    constexpr size_t kBlock = size_t{1} << 16;
    pool.for_each_block(
        static_cast<int64_t>(spans.exp_avg.elements() / kBlock), [&](int64_t block) {
          for (size_t i = static_cast<size_t>(block) * kBlock; i % kBlock != kBlock - 1; ++i) {
            spans.exp_avg.f32()[i] += step;
            spans.exp_avg_sq.f32()[i] -= step;
            spans.low[i] ^= 5;
            spans.high[i] ^= 3;
          }
        });
  }
}

TEST(LongNvmeStoreSpeed, OfAnUpdatePass) {
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(wide_model(), 1);
  Bytes elements = 0;
  for (const FlatLayout& layout : layouts) elements += layout.trainable_elements();
  const ScratchDirectory directory;
  DriveProbe probe(directory.path(), kGiB, IoEngine::kAuto);
  for (const bool on_drives : {false, true}) {
    NvmeStoreOptions options;
    options.parameters_on_drives = on_drives;
    options.geometry.weights[0] = 1;
    StateFileOptions files;
    files.directories = {directory.file(on_drives ? "all" : "state")};
    NvmeStore store(
        layouts, options,
        [&](const StripeMap& map, std::span<std::byte> window) {
          return open_state_files(files, map, window);
        },
        &pool);
    store.start(solo, 1);
    for (int64_t step = 0; step < 2; ++step) {  // both slots: unwritten extents are slower
      update_all(store, layouts, pool, 1.0f);
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
        update_all(store, layouts, pool, 1.0f);
        store.commit({2 + i, ""}, solo);
      });
      kernel += kernel_written() - before;
    }
    pass /= kPasses;
    const DriveTraffic traffic = NvmeStore::planned_update_traffic(layouts, options);
    const double bound =
        static_cast<double>(traffic.read) * 1e-9 / median_of(reads).gb_per_second +
        static_cast<double>(traffic.written) * 1e-9 / median_of(writes).gb_per_second;
    const double written = static_cast<double>(kernel) / kPasses / static_cast<double>(elements);
    std::printf(
        "parameters on %s: %.1f M parameters, read %.2f GB, written %.2f GB, pass %.3f s;"
        " drive alone, one direction after the other, %.3f s (%.0f %%); kernel: %.4f bytes"
        " written for each parameter\n",
        on_drives ? "drives" : "host", static_cast<double>(elements) * 1e-6,
        static_cast<double>(traffic.read) * 1e-9, static_cast<double>(traffic.written) * 1e-9, pass,
        bound, 100.0 * bound / pass, written);
    EXPECT_GE(written, 12.0);
    EXPECT_LE(written, 12.0 * 1.005);
  }
}

}  // namespace
}  // namespace longshore
