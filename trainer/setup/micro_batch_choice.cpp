#include "trainer/setup/micro_batch_choice.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

// Forecasts within this factor count as equal: plans are no more exact than that, and a larger
// micro-batch takes more memory.
constexpr double kSameTime = 1.01;
constexpr Bytes kMostConfigBytes = 16 * kMiB;

// Returns the sequences of a step on the first rank, which has the most: every micro-batch whose
// number is a multiple of the ranks, where the last micro-batch may be short.
int64_t most_sequences(int64_t sequences, int64_t ranks, int64_t micro_batch) {
  const int64_t last = (sequences - 1) / micro_batch;  // the last micro-batch's number
  const int64_t whole = (last / ranks + 1) * micro_batch;
  return last % ranks == 0 ? whole - ((last + 1) * micro_batch - sequences) : whole;
}

// Returns the resolved run file of the run to continue; "" if there is none.
std::string begun_run_file(const RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "never") return "";
  try {
    if (resume == "auto") return read_own_file(config.run.dir + "/config.toml", kMostConfigBytes);
    return Checkpoint::open(resume).manifest().progress.config_text;
  } catch (const Error&) {
    return "";  // the start reports a checkpoint that cannot be read
  }
}

}  // namespace

std::vector<int64_t> micro_batch_sizes(int64_t sequences_per_step, int64_t ranks,
                                       int64_t max_tokens) {
  const int64_t of_rank = most_sequences(sequences_per_step, ranks, 1);
  const int64_t most = std::min(of_rank, kMostPositions / max_tokens);
  std::vector<int64_t> sizes = {1};
  for (int64_t size = 2; size <= most; ++size) {
    const bool regular = std::has_single_bit(static_cast<uint64_t>(size)) || of_rank % size == 0;
    if (regular && most_sequences(sequences_per_step, ranks, size) == of_rank) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

int64_t preferred_micro_batch(const std::vector<int64_t>& sizes, const std::vector<double>& seconds,
                              DeviceKind device) {
  LONGSHORE_CHECK(!sizes.empty() && (seconds.empty() || seconds.size() == sizes.size()))
      << sizes.size() << " " << seconds.size();
  if (seconds.empty()) return device == DeviceKind::kCuda ? sizes.back() : sizes.front();
  const double same = kSameTime * std::ranges::min(seconds);
  const auto first =
      std::ranges::find_if(seconds, [same](double of_size) { return of_size <= same; });
  return sizes[static_cast<size_t>(first - seconds.begin())];
}

std::optional<int64_t> begun_micro_batch(const RunConfig& config) {
  const auto values = config_values(begun_run_file(config));
  const auto found = values.find("train.micro_batch");
  if (found == values.end()) return std::nullopt;
  const std::string& text = found->second;
  int64_t size = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  const bool valid = whole && size >= 1 && size <= config.train.sequences_per_step;
  return valid ? std::optional(size) : std::nullopt;
}

}  // namespace longshore
