// Loading on threads gives the bits of one thread, reads concurrently, and reports failures.
#include "shard/load_parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "base/hash.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"
#include "tests/fakes/sweep_in_order.h"

namespace longshore {
namespace {

// A model with one parameter of several chunks, the last one short, between small ones.
ModelSpec model_with_chunks() {
  ModelSpec model = fakes::make_small_model(1, true);
  model.units[1].parameters[1].shape = {1301, 512};
  model.units[1].parameters[2].frozen = true;
  return model;
}

// Sets another value for every element.
void read_values_of(const std::string& name, int64_t begin, std::span<float> out) {
  const auto first = begin + static_cast<int64_t>(hash64(name) % 1000);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(first + static_cast<int64_t>(i)) * 1.0009765625f;
  }
}

ForEachBlock on(WorkerPool& pool) {
  return [&pool](int64_t blocks, const std::function<void(int64_t)>& work) {
    pool.for_each_block(blocks, work);
  };
}

template <typename T>
void append(std::vector<std::byte>& bytes, std::span<T> values) {
  const auto more = std::as_bytes(values);
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// Returns all state that loading sets; every byte was 0x5a before.
std::vector<std::byte> loaded(const ModelSpec& model, const StateOptions& options, int32_t ranks,
                              const ForEachBlock& each_block) {
  const std::vector<FlatLayout> layouts = make_layouts(model, ranks, options.compute);
  WorkerPool pool(1);
  PinnedStore store(layouts, options, false, &pool);
  const auto each_span = [&](const auto& visit) {
    for (size_t u = 0; u < layouts.size(); ++u) {
      const auto state = store.state(UnitId(static_cast<int32_t>(u)));
      for (const Segment segment : kSegments) {
        const StateSpans spans = state->segment(segment);
        visit(std::as_writable_bytes(spans.master));
        visit(std::as_writable_bytes(spans.high));
        visit(std::as_writable_bytes(spans.low));
        visit(spans.frozen);
        for (const MomentSpan& moment : spans.regions) {
          visit(moment.values);
          visit(std::as_writable_bytes(moment.units));
        }
      }
    }
  };
  each_span([](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0x5a}); });
  load_parameters(sweep_in_order(store, model), model, layouts, Rank(ranks - 1), read_values_of,
                  each_block);
  std::vector<std::byte> all;
  each_span([&](std::span<std::byte> bytes) { append(all, bytes); });
  return all;
}

// Loading gives the same bits on any number of threads.
TEST(LoadParameters, GivesTheSameBitsOnAnyNumberOfThreads) {
  const ModelSpec model = model_with_chunks();
  for (const StateFormatTraits& traits : kStateFormats) {
    const StateOptions options{traits.format, DType::kBF16, DType::kBF16};
    for (const int32_t ranks : {1, 3}) {
      const std::vector<std::byte> expected =
          loaded(model, options, ranks, for_each_block_in_order);
      for (const int threads : {2, 5}) {
        WorkerPool pool(threads);
        EXPECT_TRUE(loaded(model, options, ranks, on(pool)) == expected)
            << threads << " threads, " << ranks << " ranks";
      }
    }
  }
}

// Goal: chunks of a unit are read concurrently; the reader here waits for a second one.
TEST(LoadParameters, ReadsChunksOfAUnitAtTheSameTime) {
  const ModelSpec model = model_with_chunks();
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  WorkerPool pool(2);
  PinnedStore store(layouts, {}, false, &pool);
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool met = false;
  const auto read = [&](const std::string& name, int64_t begin, std::span<float> out) {
    if (name == "block.0.up") {
      std::unique_lock lock(mutex);
      met = met || ++inside == 2;
      changed.notify_all();
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(1), [&] { return met; }));
      --inside;
    }
    read_values_of(name, begin, out);
  };
  load_parameters(sweep_in_order(store, model), model, layouts, Rank(0), read, on(pool));
  EXPECT_TRUE(met);
}

// The exception of a reader is rethrown.
TEST(LoadParameters, ThrowsWhatTheReaderThrew) {
  const ModelSpec model = model_with_chunks();
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  WorkerPool pool(3);
  PinnedStore store(layouts, {}, false, &pool);
  const auto read = [](const std::string& name, int64_t begin, std::span<float>) {
    if (name == "block.0.up" && begin > 0) throw std::runtime_error("the file ends early");
  };
  EXPECT_THROW(
      load_parameters(sweep_in_order(store, model), model, layouts, Rank(0), read, on(pool)),
      std::runtime_error);
}

}  // namespace
}  // namespace longshore
