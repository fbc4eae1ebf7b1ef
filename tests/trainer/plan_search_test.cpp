// plan --search against random plans. Goal: it finds a plan at least as fast as the best of 300
// that fit, for models of published sizes on known machines.
#include "offload/forecast/plan_search.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <random>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/plan_forecast.h"

namespace longshore {
namespace {

constexpr size_t kPlans = 300;
constexpr int kMostDraws = 6000;

// Sizes: the sizes of a model in config.json.
struct Sizes {
  const char* name;
  const char* family;
  int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim;
  bool tied;
};
constexpr Sizes kQwen06{"0.6B", "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, true};
constexpr Sizes kLlama1{"1B", "llama", 128256, 2048, 8192, 16, 32, 8, 64, true};
constexpr Sizes kLlama3{"3B", "llama", 128256, 3072, 8192, 28, 24, 8, 128, true};
constexpr Sizes kLlama8{"8B", "llama", 128256, 4096, 14336, 32, 32, 8, 128, false};
constexpr Sizes kSmall{"small", "llama", 8192, 256, 704, 6, 4, 2, 64, true};

std::string config_of(const Sizes& sizes) {
  const Json config = {{"model_type", sizes.family},
                       {"vocab_size", sizes.vocabulary},
                       {"hidden_size", sizes.hidden},
                       {"intermediate_size", sizes.intermediate},
                       {"num_hidden_layers", sizes.layers},
                       {"num_attention_heads", sizes.heads},
                       {"num_key_value_heads", sizes.kv_heads},
                       {"head_dim", sizes.head_dim},
                       {"max_position_embeddings", 131072},
                       {"tie_word_embeddings", sizes.tied}};
  return config.dump();
}

struct Pair {
  const char* machine;
  Sizes sizes;
  int64_t max_tokens = 1024;
  std::vector<Override> overrides = {};
};

struct Compared {
  double searched = 0.0, drawn = 0.0, own = 0.0;  // seconds of a step; own: without a search
  size_t search_plans = 0, drawn_plans = 0;
  double search_seconds = 0.0;
};

class Searching : public testing::Test {
 protected:
  Compared compare(const Pair& pair, uint32_t seed) {
    const DescribedMachine described = read_machine(pair.machine);
    const std::string model = directory_.file(pair.sizes.name);
    make_directories(model);
    std::ofstream(model + "/config.json") << config_of(pair.sizes);
    std::vector<Override> overrides = {{"run.dir", directory_.file("run")},
                                       {"model.path", model},
                                       {"model.init", "random"},
                                       {"data.train", "[\"train.jsonl\"]"},
                                       {"data.cache", directory_.file("cache")},
                                       {"data.max_tokens", std::to_string(pair.max_tokens)},
                                       {"train.sequences_per_step", "16"},
                                       {"fsdp.units", "auto"}};
    overrides.insert(overrides.end(), pair.overrides.begin(), pair.overrides.end());
    const MeasuredRun setup(
        OpenedRun(read_run({.files = {}, .overrides = overrides}, {.machine = described.machine})));
    PlanForecast forecast(&setup, described);
    Compared compared;
    const auto begin = std::chrono::steady_clock::now();
    PlanSearch search = forecast.search({});
    const std::vector<PlanPoint> points = search.frontier();
    compared.search_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    compared.search_plans = search.plans_drafted();
    if (points.empty()) return compared;
    compared.searched = points.front().seconds;
    const std::vector<SearchAxis> axes = search_axes(setup.inputs, {});
    const PlanPoint* own = search.at(std::vector<size_t>(axes.size(), 0));
    if (own != nullptr) compared.own = own->seconds;
    draw(forecast.search({}), axes, seed, compared);
    return compared;
  }

 private:
  static void draw(PlanSearch random, const std::vector<SearchAxis>& axes, uint32_t seed,
                   Compared& compared) {
    std::mt19937 draws(seed);
    std::set<std::vector<size_t>> fitting;
    for (int i = 0; i < kMostDraws && fitting.size() < kPlans; ++i) {
      std::vector<size_t> choice;
      for (const SearchAxis& axis : axes) {
        choice.push_back(draws() % axis.size());
      }
      const PlanPoint* point = random.at(choice);
      if (point == nullptr || !fitting.insert(choice).second) continue;
      if (compared.drawn == 0.0 || point->seconds < compared.drawn) {
        compared.drawn = point->seconds;
      }
    }
    compared.drawn_plans = fitting.size();
  }

  TemporaryDirectory directory_;
};

void check(const Pair& pair, const Compared& compared) {
  const std::string name = std::string(pair.machine) + " " + pair.sizes.name;
  ASSERT_GT(compared.searched, 0.0) << name << ": no plan fits";
  EXPECT_GE(compared.drawn_plans, 50u) << name;
  EXPECT_LE(compared.searched, compared.drawn * (1 + 1e-9)) << name;
  char line[200];
  std::snprintf(line, sizeof line, "| %s | %s | %lld | %.3f | %.3f | %.3f | %zu | %zu | %.1f |",
                pair.machine, pair.sizes.name, static_cast<long long>(pair.max_tokens),
                compared.own, compared.searched, compared.drawn, compared.search_plans,
                compared.drawn_plans, compared.search_seconds);
  std::cout << line << std::endl;
}

// The search is as good as the best of 300 random plans of a small model.
TEST_F(Searching, FindsAtLeastTheBestOfThreeHundredOfASmallModel) {
  uint32_t seed = 0;
  for (const Pair& pair : {Pair{"rtx-4090", kSmall, 128}, Pair{"cpu-desktop-ddr5", kSmall, 128},
                           Pair{"2x-rtx-4090", kSmall, 128}}) {
    check(pair, compare(pair, ++seed));
  }
}

using LongSearching = Searching;
// Goal: the search is as good as the best of 300 random plans, for real sizes on all machines.
TEST_F(LongSearching, FindsAtLeastTheBestOfThreeHundredOnEveryMachine) {
  const std::vector<Override> drives = {{"offload.optimizer", "nvme"},
                                        {"offload.nvme", "[\"/drive\"]"}};
  const std::vector<Pair> pairs = {
      {"rtx-4060-ti-16gb", kLlama1, 2048}, {"rtx-4060-ti-16gb", kQwen06, 4096},
      {"rtx-3090", kLlama1, 1024},         {"rtx-4090", kLlama1, 4096},
      {"rtx-4090", kLlama3, 1024},         {"rtx-4090-128gb", kLlama8, 2048},
      {"rtx-5090", kLlama3, 4096},         {"rtx-4090", kLlama8, 1024, drives},
      {"a100-80gb", kLlama8, 2048},        {"h100-sxm", kLlama8, 4096},
      {"2x-rtx-4090", kLlama3, 2048},      {"8x-h100-sxm", kLlama8, 2048},
      {"cpu-desktop-ddr5", kQwen06, 512}};
  uint32_t seed = 100;
  for (const Pair& pair : pairs) check(pair, compare(pair, ++seed));
}

}  // namespace
}  // namespace longshore
