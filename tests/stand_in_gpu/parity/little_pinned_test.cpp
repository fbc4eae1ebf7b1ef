// Training where a GPU registers little or none of the host's memory, as under WSL2: the rest is
// copied through small buffers or as pageable memory, with the bits of a run that registers all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "device/bounced_copies.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "tests/parity/run_driver.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

class LittlePinnedGpu : public testing::Test {
 protected:
  LittlePinnedGpu() { stand_in::pin_at_most(kNoLimit); }
  ~LittlePinnedGpu() override {
    stand_in::pin_at_most(kNoLimit);
    stand_in::break_part("");
  }
};

std::vector<std::byte> pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> values(bytes);
  uint32_t state = seed;
  for (std::byte& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

// Goal: pieces of any number, the last one short, arrive in both directions while two threads copy
// at once; each waits for the piece that its buffer held before.
TEST_F(LittlePinnedGpu, EveryPieceArrivesInBothDirections) {
  const Bytes most = kBounceBuffers * 64 * kKiB;
  const auto copies = make_bounced_copies(make_cuda_copy_engine(0), 0, most);
  const auto there_and_back = [&](size_t bytes, uint32_t seed) {
    const std::vector<std::byte> sent = pattern(bytes, seed);
    std::vector<std::byte> device(bytes), back(bytes);
    copies->to_device(device, sent);
    copies->to_host(back, device);
    copies->finish();
    EXPECT_TRUE(back == sent) << bytes;
  };
  constexpr size_t kPiece = 64 * static_cast<size_t>(kKiB);
  std::thread beside([&] {
    for (uint32_t i = 0; i < 20; ++i) there_and_back(5 * kPiece + 1 + 7 * i, 100 + i);
  });
  for (const size_t bytes : {size_t{1}, kPiece, 4 * kPiece, 4 * kPiece + 1, 5 * kPiece - 1,
                             6 * kPiece, 9 * kPiece + 4095}) {
    there_and_back(bytes, static_cast<uint32_t>(bytes));
  }
  beside.join();
  EXPECT_EQ(stand_in::most_registered(), most) << "two buffers in each direction";
  EXPECT_GT(copies->counts().to_host, 20 * 5 * static_cast<Bytes>(kPiece));
  EXPECT_EQ(copies->counts().to_host, copies->counts().to_device);
}

// Goal: registered memory is copied directly: no buffer is made for it.
TEST_F(LittlePinnedGpu, RegisteredMemoryNeedsNoBuffers) {
  HostMapping host(2 * kMiB, "test");
  const HostRegistration registration(host.bytes());
  std::vector<std::byte> device(host.bytes().size());
  const auto copies = make_bounced_copies(make_cuda_copy_engine(0), 0, kGiB);
  copies->to_device(device, host.bytes());
  copies->finish();
  EXPECT_EQ(stand_in::most_registered(), 2 * kMiB);
}

// Goal: buffers that the driver refuses become smaller, and where it refuses all, pageable memory
// is copied.
TEST_F(LittlePinnedGpu, BuffersBecomeSmallerUntilTheDriverTakesThem) {
  for (const Bytes limit : {3 * kMiB, Bytes{0}}) {
    stand_in::pin_at_most(limit);
    const auto copies = make_bounced_copies(make_cuda_copy_engine(0), 0, kGiB);
    const std::vector<std::byte> sent = pattern(10'000'001, 3);
    std::vector<std::byte> device(sent.size()), back(sent.size());
    copies->to_device(device, sent);
    copies->to_host(back, device);
    EXPECT_TRUE(back == sent) << limit;
    EXPECT_LE(stand_in::most_registered(), limit);
    EXPECT_EQ(stand_in::most_registered() > 0, limit > 0);
  }
}

// A model of 9.7 million parameters: 116 MiB of state and gradients, more than one of the limits.
std::string write_model() {
  const std::string directory = scratch_directory("little-pinned-model");
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/config.json")
      << R"({"model_type": "llama", "vocab_size": 16384, "hidden_size": 256,
             "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2})";
  return directory;
}

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> state;
  Bytes registered = 0;  // at most, at one time
};

Outcome train(const std::string& model, Bytes limit, const Arguments& more) {
  stand_in::pin_at_most(limit);
  RunDriver run("little-pinned");
  const Arguments base = joined(
      RunDriver::golden_arguments("llama"),
      {"--model.path=" + model, "--model.init=random", "--train.steps=2", "--device.kind=cuda",
       "--offload.activations=host", "--offload.threads=2", "--train.max_grad_norm=0.9"});
  EXPECT_EQ(run.train(joined(base, more)), 0) << testing::PrintToString(more);
  return {run.steps("loss"), run.state(), stand_in::most_registered()};
}

Arguments on_drives(const std::string& directory) {
  return {"--offload.optimizer=nvme", "--offload.parameters=nvme",
          "--offload.nvme=[\"" + directory + "\"]"};
}

// Goal: a GPU that refuses, and a key that forbids, to register more than 0, 64 MiB or 1 GiB change
// no bit, with the state in host memory and on drives; what is registered stays below the limit.
TEST_F(LittlePinnedGpu, TrainsWithTheSameBits) {
  const std::string model = write_model();
  const Outcome reference = train(model, kNoLimit, {});
  ASSERT_EQ(reference.losses.size(), 2u);
  ASSERT_FALSE(reference.state.empty());
  EXPECT_GT(reference.registered, 64 * kMiB) << "the smaller limits leave something out";
  const auto expect_same = [&](const Outcome& outcome, Bytes most, const std::string& what) {
    EXPECT_TRUE(outcome.losses == reference.losses) << what;
    EXPECT_TRUE(outcome.state == reference.state) << what;
    EXPECT_LE(outcome.registered, most) << what;
    EXPECT_EQ(outcome.registered == 0, most == 0) << what;
  };
  for (const auto& [limit, text] :
       {std::pair{Bytes{0}, "0B"}, std::pair{64 * kMiB, "64MiB"}, std::pair{kGiB, "1GiB"}}) {
    const std::string drive = scratch_directory("little-pinned-drive");
    const std::string key = std::string("--offload.pinned_memory=") + text;
    expect_same(train(model, limit, {}), limit, std::string("refused beyond ") + text);
    expect_same(train(model, kNoLimit, {key}), limit, key);
    if (limit == kGiB) continue;
    expect_same(train(model, limit, on_drives(drive)), limit, std::string("drives, ") + text);
    std::filesystem::remove_all(drive);
    expect_same(train(model, kNoLimit, joined(on_drives(drive), {key})), limit, "drives, " + key);
    std::filesystem::remove_all(drive);
  }
  std::filesystem::remove_all(model);
}

// Goal: a broken link is reported where copies go through buffers too.
TEST_F(LittlePinnedGpu, ABrokenLinkIsReported) {
  const auto copies = make_bounced_copies(make_cuda_copy_engine(0), 0, kGiB);
  const std::vector<std::byte> sent = pattern(kMiB, 1);
  std::vector<std::byte> device(sent.size());
  stand_in::break_part("link");
  EXPECT_THROW(copies->to_device(device, sent), CudaError);
}

}  // namespace
}  // namespace longshore
