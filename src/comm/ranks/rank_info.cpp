#include "comm/ranks/rank_info.h"

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int32_t kMaxRanks = 1 << 16;
constexpr uint16_t kDefaultPort = 29500;  // torchrun's default

// Parses numbers from the variables and collects their problems.
class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& variables) : variables_(variables) {}

  bool has(const std::string& name) const { return variables_.contains(name); }

  std::string text(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? "" : found->second;
  }

  std::optional<int32_t> number(const std::string& name, int32_t min, int32_t max) {
    const auto found = variables_.find(name);
    if (found == variables_.end()) return std::nullopt;
    const std::string& text = found->second;
    int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= min && value <= max) {
      return value;
    }
    fail(name + " is \"" + text + "\": must be a number from " + std::to_string(min) + " to " +
         std::to_string(max));
    return std::nullopt;
  }

  // Like number(), but a missing variable is a problem too.
  int32_t needed(const std::string& name, int32_t min, int32_t max, const std::string& because) {
    if (!has(name)) fail(name + " is not set, but " + because + " is");
    return number(name, min, max).value_or(min);
  }

  void fail(const std::string& problem) {
    problems_.push_back("rank variables: " + problem +
                        "; start the ranks with torchrun, srun, mpirun or longshore launch, or "
                        "unset the variables to run one rank");
  }

  void throw_problems() const {
    if (!problems_.empty()) throw ConfigError(problems_);
  }

 private:
  const std::map<std::string, std::string>& variables_;
  std::vector<std::string> problems_;
};

bool truth(const std::string& text) {
  return text == "1" || text == "True" || text == "true";
}

void read_store(Reader& reader, RankInfo& info) {
  if (reader.has("MASTER_ADDR")) info.store_host = reader.text("MASTER_ADDR");
  const auto port = reader.number("MASTER_PORT", 1, std::numeric_limits<uint16_t>::max());
  if (port) info.store_port = static_cast<uint16_t>(*port);
}

RankInfo from_torchrun(Reader& reader) {
  RankInfo info;
  info.launcher = reader.has("LONGSHORE_LAUNCH") ? "launch" : "torchrun";
  const std::string because = reader.has("RANK") ? "RANK" : "WORLD_SIZE";
  info.size = reader.needed("WORLD_SIZE", 1, kMaxRanks, because);
  info.rank = reader.needed("RANK", 0, kMaxRanks - 1, because);
  info.local_rank = reader.number("LOCAL_RANK", 0, kMaxRanks - 1).value_or(0);
  info.local_size = reader.number("LOCAL_WORLD_SIZE", 1, kMaxRanks).value_or(0);
  info.node = reader.number("GROUP_RANK", 0, kMaxRanks - 1).value_or(0);
  info.nodes = reader.number("GROUP_WORLD_SIZE", 1, kMaxRanks).value_or(0);
  if (info.local_size > 0 && !reader.has("GROUP_RANK")) {
    // torchrun numbers the ranks of equal-sized nodes consecutively.
    info.node = info.rank / info.local_size;
    info.nodes = (info.size + info.local_size - 1) / info.local_size;
  }
  info.restart = reader.number("TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int32_t>::max())
                     .value_or(0);
  info.run_id = reader.text(info.launcher == "launch" ? "LONGSHORE_LAUNCH" : "TORCHELASTIC_RUN_ID");
  info.agent_store = info.launcher == "launch";
  info.torch_agent = !info.agent_store && truth(reader.text("TORCHELASTIC_USE_AGENT_STORE"));
  if (info.agent_store) info.secret = reader.text("LONGSHORE_SECRET");
  if (info.size > 1) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (!reader.has(name)) reader.fail(std::string(name) + " is not set, but WORLD_SIZE is");
    }
  }
  return info;
}

RankInfo from_mpirun(Reader& reader) {
  RankInfo info;
  info.launcher = "mpirun";
  const bool open_mpi = reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE");
  const std::string prefix = open_mpi ? "OMPI_COMM_WORLD_" : "PMI_";
  const std::string because = prefix + (reader.has(prefix + "RANK") ? "RANK" : "SIZE");
  info.size = reader.needed(prefix + "SIZE", 1, kMaxRanks, because);
  info.rank = reader.needed(prefix + "RANK", 0, kMaxRanks - 1, because);
  info.local_rank = reader.number(prefix + "LOCAL_RANK", 0, kMaxRanks - 1).value_or(0);
  info.local_size = reader.number(prefix + "LOCAL_SIZE", 1, kMaxRanks).value_or(0);
  if (info.local_size > 0) {
    info.node = info.rank / info.local_size;
    info.nodes = (info.size + info.local_size - 1) / info.local_size;
  } else {
    info.nodes = 0;
  }
  info.store_port = kDefaultPort;
  if (info.local_size == info.size) info.store_host = "127.0.0.1";
  if (info.size > 1 && info.store_host.empty() && !reader.has("MASTER_ADDR")) {
    reader.fail(
        "MASTER_ADDR is not set, but mpirun started ranks that may be on several nodes: give the "
        "address of the first node (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)");
  }
  return info;
}

RankInfo from_srun(Reader& reader) {
  RankInfo info;
  info.launcher = "srun";
  info.size = reader.needed("SLURM_NTASKS", 1, kMaxRanks, "SLURM_PROCID");
  info.rank = reader.needed("SLURM_PROCID", 0, kMaxRanks - 1, "SLURM_NTASKS");
  info.local_rank = reader.number("SLURM_LOCALID", 0, kMaxRanks - 1).value_or(0);
  info.node = reader.number("SLURM_NODEID", 0, kMaxRanks - 1).value_or(0);
  info.nodes = reader.number("SLURM_NNODES", 1, kMaxRanks).value_or(0);
  info.local_size = 0;  // tasks per node may differ, so the ranks count themselves
  info.restart =
      reader.number("SLURM_RESTART_COUNT", 0, std::numeric_limits<int32_t>::max()).value_or(0);
  info.run_id = reader.text("SLURM_JOB_ID");
  // Jobs that share a node need different ports; all ranks of a job compute the same one.
  const auto job = reader.number("SLURM_JOB_ID", 0, std::numeric_limits<int32_t>::max());
  info.store_port = job ? static_cast<uint16_t>(15000 + *job % 15000) : kDefaultPort;
  if (info.size == 1 || reader.has("MASTER_ADDR")) return info;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (!reader.has(name)) continue;
    info.store_host = first_slurm_host(reader.text(name));
    if (info.store_host.empty()) {
      reader.fail(std::string(name) + " is \"" + reader.text(name) + "\": no host can be read");
    }
    return info;
  }
  reader.fail("neither MASTER_ADDR nor SLURM_NODELIST is set, but SLURM_PROCID is");
  return info;
}

// A batch script runs in a job but in no step; its SLURM_PROCID is the script's own.
bool started_by_srun(const Reader& reader) {
  const bool in_batch_script = reader.has("SLURM_JOB_ID") && !reader.has("SLURM_STEP_ID");
  return reader.has("SLURM_PROCID") && !in_batch_script;
}

void check(Reader& reader, const RankInfo& info) {
  const auto below = [&](const char* what, int32_t index, int32_t count) {
    if (count > 0 && index >= count) {
      reader.fail(std::string(what) + " " + std::to_string(index) + " is not below their number " +
                  std::to_string(count));
    }
  };
  below("rank", info.rank, info.size);
  below("local rank", info.local_rank, info.local_size);
  below("node", info.node, info.nodes);
  if (info.local_size > info.size) {
    reader.fail("the node has " + std::to_string(info.local_size) + " ranks, but all are " +
                std::to_string(info.size));
  }
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::string RankInfo::text() const {
  std::string text = "rank " + std::to_string(rank) + " of " + std::to_string(size);
  if (local_size > 0) {
    text += " (" + std::to_string(local_rank) + " of " + std::to_string(local_size) + " on node " +
            std::to_string(node) + " of " + std::to_string(nodes) + ")";
  }
  text += launcher == "none" ? ", no launcher" : ", found by " + launcher;
  if (size > 1) {
    text += "; store at " + store_host + ":" + std::to_string(store_port) +
            (agent_store ? ", served by the launcher" : ", served by rank 0") +
            (torch_agent ? ", found through torchrun's agent" : "");
  }
  return text;
}

int gpu_of(const RankInfo& ranks, size_t visible) {
  return visible == 1 ? 0 : ranks.local_rank;
}

RankInfo discover_ranks(const std::map<std::string, std::string>& variables) {
  Reader reader(variables);
  RankInfo info;
  if (reader.has("RANK") || reader.has("WORLD_SIZE") || reader.has("LONGSHORE_LAUNCH")) {
    info = from_torchrun(reader);
  } else if (reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE")) {
    info = from_mpirun(reader);
  } else if (started_by_srun(reader)) {
    info = from_srun(reader);
  } else if (reader.has("PMI_RANK") || reader.has("PMI_SIZE")) {
    info = from_mpirun(reader);
  } else {
    return info;
  }
  read_store(reader, info);
  check(reader, info);
  reader.throw_problems();
  return info;
}

std::string first_slurm_host(std::string_view list) {
  std::string host;
  size_t i = 0;
  while (i < list.size() && list[i] != ',') {
    if (list[i] != '[') {
      if (!is_host_character(list[i])) return {};
      host += list[i++];
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string_view::npos) return {};
    const size_t begin = host.size();
    for (++i; i < close && is_digit(list[i]); ++i) host += list[i];
    if (host.size() == begin) return {};
    // The rest of the brackets names other hosts.
    i = close + 1;
  }
  return host;
}

}  // namespace longshore
