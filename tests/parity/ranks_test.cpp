// Several ranks as real processes over Gloo: the results of one rank, the bytes of the plan, and
// checkpoints that any other number of ranks can resume.
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// Spread: the number of ranks and the strategy of a run.
struct Spread {
  int ranks;
  std::string strategy;
  std::string shard_ranks = "auto";

  Arguments arguments() const {
    return {"--fsdp.strategy=" + strategy, "--fsdp.shard_ranks=" + shard_ranks};
  }
  friend void PrintTo(const Spread& spread, std::ostream* out) {
    *out << spread.ranks << " ranks, " << spread.strategy << " " << spread.shard_ranks;
  }
};

std::vector<Spread> spreads() {
  std::vector<Spread> list;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      list.push_back({ranks, strategy});
    }
  }
  list.push_back({4, "hybrid_shard", "2"});
  list.push_back({8, "hybrid_shard", "4"});
  list.push_back({8, "hybrid_shard", "2"});
  return list;
}

// Returns an uneven run: five rows per step over any number of ranks, so that some have more or
// none, and rows with different numbers of trained tokens.
Arguments uneven(const std::string& golden) {
  return joined(RunDriver::golden_arguments(golden),
                {"--train.sequences_per_step=5", "--train.max_grad_norm=0.9"});
}

void expect_close(const std::vector<double>& got, const std::vector<double>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - expected[i]), tolerance * std::abs(expected[i]))
        << what << " of step " << i + 1;
  }
}

// Softmax nearly ignores the bias of keys: its gradient is rounding noise, which Adam turns into
// steps. For qwen2's at 4 ranks 1.006e-4 was measured; all else stays within 1e-4.
double weight_tolerance(const std::string& name) {
  const bool key_bias = name.find("k_proj.bias") != std::string::npos ||
                        name.find("c_attn.bias") != std::string::npos;
  return key_bias ? 5e-4 : 1e-4;
}

void expect_same_trajectory(const RunDriver& run, const RunDriver& reference) {
  expect_close(run.steps("loss"), reference.steps("loss"), 1e-4, "loss");
  expect_close(run.steps("grad_norm"), reference.steps("grad_norm"), 1e-3, "norm");
  const auto state = run.state();
  const auto expected = reference.state();
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, values] : expected) {
    if (!name.ends_with(".master")) continue;
    EXPECT_LE(relative_error(state.at(name), values), weight_tolerance(name)) << name;
  }
}

// Expects that the payload of the collectives is the planned one in every step.
void expect_planned_payload(const RunDriver& run, const Spread& spread) {
  const Json plan = run.plan(spread.ranks);
  for (const Json& step : run.metrics("step")) {
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
      EXPECT_EQ(step.at("bytes").at(kind), plan.at("step").at(std::string(kind) + "_bytes"))
          << kind << " of step " << step.at("step");
    }
  }
  run.expect_within_plan();
}

void expect_follows_one_rank(const std::string& golden, const Spread& spread,
                             const Arguments& more) {
  SCOPED_TRACE(golden + " " + testing::PrintToString(spread));
  RunDriver one("one-rank");
  ASSERT_EQ(one.train(joined(uneven(golden), more)), 0);
  RunDriver many("ranks");
  const Arguments arguments = joined(joined(uneven(golden), more), spread.arguments());
  ASSERT_EQ(many.train_ranks(spread.ranks, arguments), 0) << many.output();
  expect_same_trajectory(many, one);
  expect_planned_payload(many, spread);
}

// Returns whether the case is another one's model that only its files or one switch tell apart:
// ranks share it out in the same way.
bool is_variant(const std::string& golden) {
  for (const std::string_view end : {"-plain", "-indexed", "-bf16", "-capped", "-clip"}) {
    if (golden.ends_with(end)) return true;
  }
  return false;
}

// Several ranks follow one rank, in a cover of families and spreads with tied weights, frozen
// parameters and parameters smaller than the rank count. The first families take all spreads in
// turn. The others take at most four ranks, because eight processes share the cores of a machine.
TEST(Ranks, FollowOneRankOverACoverOfFamiliesAndStrategies) {
  const std::vector<Spread> all = spreads();
  std::vector<std::string> goldens = joined(golden_names(), expert_golden_names());
  std::erase_if(goldens, is_variant);
  for (size_t i = 0; i < goldens.size(); ++i) {
    Spread spread = all[(i * 4 + 1) % all.size()];
    if (i >= all.size() && spread.ranks > 4) {
      spread = {4, spread.strategy, spread.shard_ranks == "auto" ? "auto" : "2"};
    }
    const std::string norms = goldens[i].starts_with("gpt2") ? "*ln_1*" : "*norm*";
    Arguments more = {"--train.steps=8"};
    if (i % 3 == 0) more.push_back("--train.freeze=[\"" + norms + "\"]");
    expect_follows_one_rank(goldens[i], spread, more);
  }
}

// Several ranks follow one rank in every family and strategy.
TEST(LongRanks, FollowOneRankInEveryFamilyAndStrategy) {
  for (const std::string& golden : joined(golden_names(), expert_golden_names())) {
    for (const Spread& spread : spreads()) expect_follows_one_rank(golden, spread, {});
  }
}

// The run follows PyTorch's fully_shard over Gloo on the same rows and ranks (make_fsdp2.py). Both
// add in their own order and Adam enlarges the difference, hence 1e-5 of each loss over 20 steps.
TEST(Ranks, FollowFullyShardOfPyTorch) {
  for (const std::string golden : {"llama", "llama-tied", "gpt2"}) {
    const Json facts =
        read_json_file(test_data() + "/parity/fsdp2/" + golden + ".json", JsonLimits{});
    for (const int ranks : {2, 4}) {
      RunDriver run("fully-shard");
      const Arguments arguments =
          joined(RunDriver::golden_arguments(golden),
                 {"--train.sequences_per_step=" + facts.at("sequences_per_step").dump(),
                  "--train.max_grad_norm=" + facts.at("max_grad_norm").dump()});
      ASSERT_EQ(run.train_ranks(ranks, arguments), 0) << run.output();
      const Json& expected = facts.at("runs").at(std::to_string(ranks));
      expect_close(run.steps("loss"), expected.at("loss").get<std::vector<double>>(), 1e-5,
                   golden + " loss");
      expect_close(run.steps("grad_norm"), expected.at("grad_norm").get<std::vector<double>>(),
                   1e-4, golden + " norm");
    }
  }
}

// Two runs of the same plan give the same bits, whatever the order of messages.
TEST(Ranks, TheSamePlanGivesTheSameBits) {
  const Spread spread{4, "hybrid_shard", "2"};
  const Arguments arguments =
      joined(joined(uneven("llama-tied"), spread.arguments()), {"--precision.compute=bf16"});
  RunDriver first("first"), second("second");
  ASSERT_EQ(first.train_ranks(4, arguments), 0) << first.output();
  ASSERT_EQ(second.train_ranks(4, arguments), 0) << second.output();
  EXPECT_EQ(first.steps("loss"), second.steps("loss"));
  EXPECT_EQ(first.steps("grad_norm"), second.steps("grad_norm"));
  EXPECT_TRUE(first.state() == second.state());
}

// Prefetch and recompute change no bit.
TEST(Ranks, PrefetchAndRecomputeKeepTheBits) {
  const Arguments base = joined(uneven("llama"), {"--train.steps=5"});
  RunDriver reference("reference");
  ASSERT_EQ(reference.train_ranks(2, base), 0) << reference.output();
  for (const Arguments& variant :
       {Arguments{"--fsdp.prefetch=0"}, Arguments{"--fsdp.prefetch=3", "--fsdp.recompute=none"},
        Arguments{"--fsdp.recompute=except-mlp", "--offload.activations=host"},
        Arguments{"--fsdp.strategy=shard_grad_op"},
        Arguments{"--optimizer.overlap=none", "--offload.activations=host"}}) {
    RunDriver run("variant");
    ASSERT_EQ(run.train_ranks(2, joined(base, variant)), 0) << run.output();
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << variant.front();
    EXPECT_TRUE(run.state() == reference.state()) << variant.front();
  }
}

// Gathering through shared memory gives the bits of gathering over the network.
TEST(Ranks, HostGatherKeepsTheBits) {
  const Arguments base = joined(uneven("llama"), {"--train.steps=5", "--precision.compute=bf16"});
  RunDriver collective("collective"), host("host");
  ASSERT_EQ(collective.train_ranks(2, joined(base, {"--fsdp.gather=collective"})), 0);
  ASSERT_EQ(host.train_ranks(2, joined(base, {"--fsdp.gather=host"})), 0) << host.output();
  EXPECT_EQ(host.steps("loss"), collective.steps("loss"));
  EXPECT_TRUE(host.state() == collective.state());
  const auto bytes = [](const RunDriver& run, const char* link) {
    return run.metrics("step").front().at("bytes").at(link).get<int64_t>();
  };
  EXPECT_EQ(bytes(host, "all_gather"), 0);
  EXPECT_GT(bytes(collective, "all_gather"), 0);
  EXPECT_GT(bytes(host, "h2d"), bytes(collective, "h2d"));
}

// bf16 on the wire halves the payload; sums stay fp32, so only the rounding of addends differs.
TEST(Ranks, Bf16OnTheWireHalvesThePayload) {
  const Spread spread{2, "full_shard"};
  const Arguments base = joined(uneven("qwen3"), {"--train.steps=5"});
  RunDriver full("full"), half("half");
  ASSERT_EQ(full.train_ranks(2, base), 0) << full.output();
  ASSERT_EQ(half.train_ranks(2, joined(base, {"--precision.reduce=bf16"})), 0) << half.output();
  const auto bytes = [](const RunDriver& run) {
    return run.metrics("step").front().at("bytes").at("reduce_scatter").get<int64_t>();
  };
  EXPECT_EQ(bytes(full), 2 * bytes(half));
  expect_close(half.steps("loss"), full.steps("loss"), 2e-3, "loss");
}

// A run resumed by other numbers of ranks, strategies and units equals the run of one rank.
TEST(Ranks, ARunGoesOnAtAnyNumberOfRanks) {
  RunDriver unbroken("unbroken");
  ASSERT_EQ(unbroken.train(joined(uneven("llama-tied"), {"--train.steps=24"})), 0);
  RunDriver run("moved");
  struct Leg {
    Spread spread;
    Arguments more;
  };
  const std::vector<Leg> legs = {
      {{1, "full_shard"}, {}},
      {{4, "full_shard"}, {}},
      {{2, "no_shard"}, {"--fsdp.units={ min_parameters = 4000 }"}},
      {{8, "hybrid_shard", "4"}, {"--offload.state_format=fp32"}},
      {{3, "shard_grad_op"}, {"--fsdp.units={ groups = [[\"block.0\", \"block.1\"]] }"}},
      // Pieces of a tied head own no parameters that could stay gathered.
      {{2, "shard_grad_op"}, {"--fsdp.units={ rows = 64 }"}},
  };
  for (size_t i = 0; i < legs.size(); ++i) {
    const Arguments arguments =
        joined(joined(uneven("llama-tied"), legs[i].spread.arguments()),
               joined(legs[i].more, {"--train.steps=" + std::to_string(4 * (i + 1))}));
    const int exit_code = legs[i].spread.ranks == 1
                              ? run.train(arguments)
                              : run.train_ranks(legs[i].spread.ranks, arguments);
    ASSERT_EQ(exit_code, 0) << run.output();
  }
  expect_same_trajectory(run, unbroken);
}

// A topology that does not divide the ranks is refused on all ranks.
TEST(Ranks, DifferentRunFilesAreRefusedOnAllRanks) {
  RunDriver run("refused");
  // A hybrid group of three does not divide four ranks.
  EXPECT_EQ(run.train_ranks(4, joined(uneven("llama"), Spread{4, "hybrid_shard", "3"}.arguments())),
            2);
  EXPECT_NE(run.output().find("fsdp.shard_ranks = 3: does not divide the run's 4 ranks"),
            std::string::npos)
      << run.output();
}

}  // namespace
}  // namespace longshore
