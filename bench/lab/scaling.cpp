#include "bench/lab/scaling.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/json.h"
#include "base/log.h"
#include "bench/lab/rank_simulation.h"

namespace longshore {
namespace {

// An 8B Llama in units of equal size, with the plan's bytes per parameter.
constexpr int32_t kUnits = 34;
constexpr double kParameters = 8.03e9 / kUnits;
constexpr double kFetchBytes = 2.0, kGatherBytes = 2.0, kReduceBytes = 4.0, kDrainBytes = 2.0;
constexpr double kUpdateBytes = 18.0;
// Bytes of the baselines per parameter; overlap.md gives the reasons.
constexpr double kFsdp2FetchBytes = 4.0, kFsdp2DrainBytes = 4.0, kFsdp2UpdateBytes = 28.0;
constexpr double kDeepSpeedDrainBytes = 8.0, kDeepSpeedUpdateBytes = 42.0;
constexpr double kBackwardOfForward = 3.0;
constexpr double kBitsOfByte = 8.0;

struct PaperMachine {
  const char* name;
  int32_t ranks;  // per node
  double flops;   // reached by a GPU
  double link;    // bytes per second between host and GPU, each way, with both busy
  double dram;    // of the node
  double peers;   // of a GPU to others of the node; 0: through host memory
};
constexpr PaperMachine kSharedPcie{"8 x RTX 4090, PCIe 4.0, no P2P", 8, 90e12, 22e9, 300e9, 0.0};
constexpr PaperMachine kNvlink{"8 x H100 SXM a node", 8, 450e12, 45e9, 400e9, 300e9};

struct Bytes4 {
  double fetch, drain, update;
};
constexpr Bytes4 kOurs{kFetchBytes, kDrainBytes, kUpdateBytes};
constexpr Bytes4 kFsdp2{kFsdp2FetchBytes, kFsdp2DrainBytes, kFsdp2UpdateBytes};
constexpr Bytes4 kDeepSpeed{kFetchBytes, kDeepSpeedDrainBytes, kDeepSpeedUpdateBytes};

struct Way {
  const char* name;
  bool over_nodes = false;  // shards over all nodes instead of inside each
  bool host_gather = false;
};

// Without P2P all GPUs at once write each hop of a ring to host memory and read it from there.
double peer_rate(const PaperMachine& machine) {
  if (machine.peers > 0.0) return machine.peers;
  return std::min(machine.link, machine.dram / (2.0 * machine.ranks));
}

// Returns the seconds of a group of `ranks` on `nodes`: all bytes but its own part pass each rank's
// link, or each node's network.
double collective_seconds(const PaperMachine& machine, double bytes, double ranks, double nodes,
                          double network) {
  if (ranks <= 1.0) return 0.0;
  const double inside = bytes * (ranks - 1.0) / ranks / peer_rate(machine);
  const double between = nodes > 1.0 ? bytes * (nodes - 1.0) / nodes / network : 0.0;
  return std::max(inside, between);
}

TimedStepOptions step_of(const PaperMachine& machine, const Bytes4& bytes, const Way& way,
                         double nodes, double network, int64_t tokens, int32_t ranks_of_node) {
  const double ranks = ranks_of_node * nodes;
  const double shard_nodes = way.over_nodes ? nodes : 1.0;
  const double shards = ranks_of_node * shard_nodes;
  TimedStepOptions step;
  step.units = kUnits;
  step.several_ranks = ranks > 1.0;
  step.prefetch = step.several_ranks ? 2 : 1;
  UnitTimes& times = step.times;
  times.forward = 2.0 * kParameters * static_cast<double>(tokens) / machine.flops;
  times.backward = kBackwardOfForward * times.forward;
  times.update = bytes.update * kParameters / shards / (machine.dram / ranks_of_node);
  times.fetch = bytes.fetch * kParameters / (way.host_gather ? 1.0 : shards) / machine.link;
  times.drain = bytes.drain * kParameters / shards / machine.link;
  if (!way.host_gather) {
    times.gather =
        collective_seconds(machine, kGatherBytes * kParameters, shards, shard_nodes, network);
  }
  const double gradient = kReduceBytes * kParameters;
  times.reduce = collective_seconds(machine, gradient, shards, shard_nodes, network);
  const double replicas = nodes / shard_nodes;
  if (replicas > 1.0) {
    // The rank's part goes out and back over the rank's share of the node's network.
    times.reduce +=
        2.0 * gradient / shards * (replicas - 1.0) / replicas / (network / ranks_of_node);
  }
  // Through the host, collectives and copies use the same links, so their times add up.
  if (machine.peers == 0.0 && ranks_of_node > 1) {
    times.gather += way.host_gather ? 0.0 : times.fetch;
    times.reduce += times.drain;
  }
  return step;
}

using MakeStep = std::function<TimedStep(const TimedStepOptions&, const ModelSpec&)>;

struct Simulated {
  double seconds = 0.0, jittered = 0.0;
  const char* way = "";
};

Simulated fastest(const PaperMachine& machine, const Bytes4& bytes, const MakeStep& make,
                  const std::vector<Way>& ways, int32_t nodes, double network, int64_t tokens,
                  int32_t ranks_of_node, const LabScalingOptions& options) {
  const ModelSpec model = make_equal_units(kUnits);
  Simulated best;
  for (const Way& way : ways) {
    const TimedStep step =
        make(step_of(machine, bytes, way, nodes, network, tokens, ranks_of_node), model);
    SimulatedRanks ranks;
    ranks.ranks = ranks_of_node * nodes;
    ranks.shard_ranks = way.over_nodes ? ranks.ranks : ranks_of_node;
    // Inside nodes units are gathered over another link than gradients are reduced over.
    ranks.one_link = ranks.shard_ranks == ranks.ranks;
    const double seconds = simulate_ranks(step, ranks);
    if (best.seconds > 0.0 && seconds >= best.seconds) continue;
    ranks.jitter = options.jitter;
    ranks.slow_rank = options.slow_rank;
    best = {seconds, simulate_ranks(step, ranks), way.name};
  }
  return best;
}

ScalingFigures scaled(const PaperMachine& machine, int32_t nodes, double network_gbit,
                      int64_t tokens, const LabScalingOptions& options) {
  const double network = network_gbit * 1e9 / kBitsOfByte;
  std::vector<Way> ways = {{"full_shard", nodes > 1}};
  if (nodes > 1) ways.push_back({"hybrid_shard"});
  std::vector<Way> ours = ways;
  if (nodes == 1) ours.push_back({"full_shard, host gather", false, true});
  const auto times = [&](const Bytes4& bytes, const MakeStep& make, const std::vector<Way>& those) {
    return fastest(machine, bytes, make, those, nodes, network, tokens, machine.ranks, options);
  };
  // The reference is one rank or one node alone, with jitter but without the slow rank.
  const int32_t alone_ranks = nodes > 1 ? machine.ranks : 1;
  LabScalingOptions no_slow_rank = options;
  no_slow_rank.slow_rank = 0.0;
  const Simulated alone = fastest(machine, kOurs, longshore_step, {{"full_shard"}}, 1, 0.0, tokens,
                                  alone_ranks, no_slow_rank);
  const double many = nodes > 1 ? nodes : machine.ranks;
  const Simulated longshore = times(kOurs, longshore_step, ours);
  ScalingFigures figures;
  figures.machine = machine.name;
  figures.ranks = machine.ranks * nodes;
  figures.nodes = nodes;
  figures.network = nodes > 1 ? network_gbit : 0.0;
  figures.tokens = tokens;
  figures.way = longshore.way;
  figures.longshore = many * alone.seconds / longshore.seconds;
  figures.jittered = many * alone.jittered / longshore.jittered;
  figures.fsdp2 = many * alone.seconds / times(kFsdp2, fsdp2_step, ways).seconds;
  figures.deepspeed = many * alone.seconds / times(kDeepSpeed, deepspeed_step, ways).seconds;
  return figures;
}

Json to_json(const ScalingFigures& f) {
  return {{"machine", f.machine},      {"ranks", f.ranks},       {"nodes", f.nodes},
          {"network_gbit", f.network}, {"tokens", f.tokens},     {"way", f.way},
          {"longshore", f.longshore},  {"jittered", f.jittered}, {"fsdp2", f.fsdp2},
          {"deepspeed", f.deepspeed}};
}

}  // namespace

std::vector<ScalingFigures> scale_on_paper(const LabScalingOptions& options) {
  std::vector<ScalingFigures> all;
  for (const int64_t tokens : options.tokens) {
    all.push_back(scaled(kSharedPcie, 1, 0.0, tokens, options));
  }
  for (const int64_t tokens : options.tokens) {
    for (const double network : {100.0, 200.0, 400.0}) {
      for (const int32_t nodes : {2, 4, 8, 16, 32, 64}) {
        all.push_back(scaled(kNvlink, nodes, network, tokens, options));
      }
    }
  }
  return all;
}

int run_lab_scaling(const LabScalingOptions& options) {
  const std::vector<ScalingFigures> all = scale_on_paper(options);
  if (options.json) {
    Json json = {{"jitter", options.jitter}, {"slow_rank", options.slow_rank}};
    for (const ScalingFigures& figures : all) json["figures"].push_back(to_json(figures));
    print_out("%s\n", json.dump(1).c_str());
    return 0;
  }
  print_out(
      "times what one rank does, or one node where there are several; on paper\n%-32s %5s %5s "
      "%7s %6s  %-24s %9s %9s %9s %9s\n",
      "machine", "ranks", "nodes", "Gbit/s", "tokens", "way", "longshore", "jittered", "fsdp2",
      "deepspeed");
  for (const ScalingFigures& f : all) {
    print_out("%-32s %5d %5d %7.0f %6lld  %-24s %9.2f %9.2f %9.2f %9.2f\n", f.machine.c_str(),
              f.ranks, f.nodes, f.network, static_cast<long long>(f.tokens), f.way.c_str(),
              f.longshore, f.jittered, f.fsdp2, f.deepspeed);
  }
  return 0;
}

}  // namespace longshore
