// The self-check before the first step on a GPU, with children that pass, differ, crash, hang and
// flood; and the device that `auto` takes on made-up machines.
#include "trainer/device/gpu_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/comm/rank_threads.h"
#include "tests/nvme/scratch_file.h"
#include "trainer/device/device_choice.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;
using Kind = DeviceSection::Kind;

class SelfChecks : public testing::Test {
 protected:
  SelfCheck check(const std::string& script) const {
    return {.command = {"/bin/sh", "-c", script},
            .limit = std::chrono::seconds(60),
            .directory = directory_.path() + "/gpu",
            .identity = "a GPU\ndriver 1\n"};
  }
  // Returns the error text; empty if the check passed.
  static std::string failure(const SelfCheck& check) {
    try {
      require_sound_gpu(check);
    } catch (const GpuError& error) {
      EXPECT_EQ(static_cast<int>(error.exit_code()), 10);
      return error.what();
    }
    return "";
  }

  const ScratchDirectory directory_;
};

// Goal: a passed check is not repeated, except on another GPU, driver or build.
TEST_F(SelfChecks, IsRememberedByGpuDriverAndBuild) {
  const std::string count = directory_.path() + "/count";
  SelfCheck counted = check("echo run >> " + count);
  require_sound_gpu(counted);
  require_sound_gpu(counted);
  EXPECT_EQ(fs::file_size(count), 4u);
  counted.identity = "a GPU\ndriver 2\n";
  require_sound_gpu(counted);
  EXPECT_EQ(fs::file_size(count), 8u);
}

// A difference is reported, and a failure is not remembered.
TEST_F(SelfChecks, SaysWhatDiffersAndRemembersNoFailure) {
  for (int i = 0; i < 2; ++i) {
    const std::string text = failure(check("echo 'swiglu, bf16: 3 apart'; exit 10"));
    EXPECT_NE(text.find("swiglu, bf16: 3 apart"), std::string::npos) << text;
    EXPECT_NE(text.find("exit code 10"), std::string::npos) << text;
    EXPECT_NE(text.find("device.kind = \"cpu\""), std::string::npos) << text;
  }
}

// A crash of the child is reported with its signal and output.
TEST_F(SelfChecks, SaysThatTheChildCrashed) {
  const std::string text = failure(check("echo before >&2; kill -SEGV $$"));
  EXPECT_NE(text.find("crashed: Segmentation fault"), std::string::npos) << text;
  EXPECT_NE(text.find("before"), std::string::npos) << text;
}

// A child that hangs is killed and reported.
TEST_F(SelfChecks, EndsAChildThatHangs) {
  SelfCheck hangs = check("echo started; exec sleep 1000");
  hangs.limit = std::chrono::milliseconds(500);
  const std::string text = failure(hangs);
  EXPECT_NE(text.find("did not end within"), std::string::npos) << text;
  EXPECT_NE(text.find("started"), std::string::npos) << text;
}

// Goal: a child that closes its output and continues is killed too, and a flood of output is cut.
TEST_F(SelfChecks, KeepsTheEndOfAFlood) {
  const std::string text = failure(check("yes | head -c 3000000; echo; echo the end; exit 1"));
  EXPECT_NE(text.find("the end"), std::string::npos);
  EXPECT_LT(text.size(), 40'000u);
}

// A child that cannot be started is reported.
TEST_F(SelfChecks, SaysThatTheChildCannotBeStarted) {
  SelfCheck none = check("");
  none.command = {directory_.path() + "/nothing"};
  EXPECT_NE(failure(none), "");
}

// A remembered result that is cut or belongs to another check is ignored.
TEST_F(SelfChecks, BelievesNoMemoryOfSomethingElse) {
  require_sound_gpu(check("true"));
  for (const auto& file : fs::directory_iterator(directory_.path() + "/gpu")) {
    std::ofstream(file.path()) << "a GPU";
  }
  EXPECT_NE(failure(check("exit 10")), "");
}

// ---- device.kind = "auto" ----

class DeviceChoice : public testing::Test {
 protected:
  DeviceChoice() { config_.run.dir = directory_.path(); }
  static CudaDevice gpu(int major) {
    return {.name = "G", .memory_bytes = kGiB, .compute_major = major};
  }
  void began_on(const std::string& kind) const {
    std::ofstream(directory_.path() + "/config.toml") << "[device]\nkind = \"" << kind << "\"\n";
  }
  Kind settled(const FoundGpus& found) const {
    RunConfig config = config_;
    resolve_device(config, found);
    return config.device.kind;
  }
  std::string refusal(const FoundGpus& found, int32_t ranks = 1) const {
    try {
      RunConfig config = config_;
      resolve_device(config, found);
      require_gpus(config, found, ranks);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  const ScratchDirectory directory_;
  RunConfig config_;
  const FoundGpus none_;
  const FoundGpus one_{.usable = {gpu(9)}, .present = {"0000:01:00.0"}, .trouble = ""};
  const FoundGpus old_driver_{.usable = {}, .present = {"0000:01:00.0"}, .trouble = "too old"};
};

// "auto" takes the GPU if there is one, else the CPU.
TEST_F(DeviceChoice, AutoIsTheGpuIfThereIsOne) {
  EXPECT_EQ(settled(one_), Kind::kCuda);
  EXPECT_EQ(settled(none_), Kind::kCpu);
  // A machine without a GPU has neither a driver nor a device.
  EXPECT_EQ(settled({.usable = {}, .present = {}, .trouble = "no driver"}), Kind::kCpu);
  // This process was not given the GPU.
  EXPECT_EQ(settled({.usable = {}, .present = {"0000:01:00.0"}, .trouble = ""}), Kind::kCpu);
}

// Goal: each rank of a machine has its own GPU, whether it sees all or only that one; ranks that
// would share a GPU are refused on every rank.
TEST_F(DeviceChoice, RanksHaveAGpuEach) {
  CudaDevice first = gpu(9), second = gpu(9);
  first.pci = "0000:01:00.0";
  second.pci = "0000:02:00.0";
  const auto refusals = [this](const std::vector<FoundGpus>& seen) {
    RunConfig config = config_;
    config.device.kind = Kind::kCuda;
    std::vector<std::string> texts(seen.size());
    run_ranks(static_cast<int32_t>(seen.size()), [&](World& world) {
      const auto rank = static_cast<size_t>(world.ranks().rank);
      const int own = gpu_of(world.ranks(), seen[rank].usable.size());
      try {
        agree_on_gpus(world, config, seen[rank], own);
      } catch (const ConfigError& error) {
        texts[rank] = error.what();
      }
    });
    return texts;
  };
  const FoundGpus both{.usable = {first, second}, .present = {}, .trouble = ""};
  const FoundGpus one{.usable = {first}, .present = {}, .trouble = ""};
  const FoundGpus other{.usable = {second}, .present = {}, .trouble = ""};
  EXPECT_EQ(refusals({both, both}), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(refusals({one, other}), (std::vector<std::string>{"", ""}));
  for (const std::string& text : refusals({one, one})) {
    EXPECT_NE(text.find("2 ranks run on this machine, which has 1 GPUs"), std::string::npos)
        << text;
  }
  for (const std::string& text : refusals({both, both, both})) {
    EXPECT_NE(text.find("3 ranks run on this machine, which has 2 GPUs"), std::string::npos)
        << text;
  }
}

// A run stays on the device where it began.
TEST_F(DeviceChoice, ARunStaysWhereItBegan) {
  began_on("cpu");
  EXPECT_EQ(settled(one_), Kind::kCpu);
  began_on("auto");  // written when auto was the CPU
  EXPECT_EQ(settled(one_), Kind::kCpu);
  config_.checkpoint.resume = "never";
  EXPECT_EQ(settled(one_), Kind::kCuda);
}

// A run of a GPU does not resume on the CPU silently.
TEST_F(DeviceChoice, ARunOfAGpuDoesNotGoOnOnTheCpuSilently) {
  began_on("cuda");
  EXPECT_EQ(settled(one_), Kind::kCuda);
  EXPECT_NE(refusal(none_).find("device.kind = \"cpu\""), std::string::npos);
  config_.device.kind = Kind::kCpu;
  EXPECT_EQ(refusal(none_), "");
}

// A GPU that cannot be used ends the run with the reason.
TEST_F(DeviceChoice, AGpuThatCannotBeUsedEndsTheRun) {
  EXPECT_NE(refusal(old_driver_).find("too old"), std::string::npos);
  EXPECT_NE(refusal(old_driver_).find("driver"), std::string::npos);
  EXPECT_NE(refusal({.usable = {gpu(7)}, .present = {}, .trouble = ""}).find("7.0"),
            std::string::npos);
  EXPECT_NE(refusal(one_, 2).find("2 ranks"), std::string::npos);
  config_.device.kind = Kind::kCuda;
  EXPECT_NE(refusal(none_).find("no GPU"), std::string::npos);
  EXPECT_EQ(refusal(one_), "");
}

// GPUs are found on the PCI bus.
TEST_F(DeviceChoice, FindsGpusOnTheBus) {
  const auto device = [&](const std::string& name, const char* vendor, const char* kind) {
    const fs::path path = fs::path(directory_.path()) / "bus" / name;
    fs::create_directories(path);
    std::ofstream(path / "vendor") << vendor << "\n";
    std::ofstream(path / "class") << kind << "\n";
  };
  device("0000:01:00.0", "0x10de", "0x030200");
  device("0000:01:00.1", "0x10de", "0x040300");  // its audio function
  device("0000:02:00.0", "0x8086", "0x030000");
  EXPECT_EQ(find_gpus(directory_.path() + "/bus").present,
            std::vector<std::string>{"0000:01:00.0"});
  EXPECT_TRUE(find_gpus(directory_.path() + "/none").present.empty());
}

}  // namespace
}  // namespace longshore
