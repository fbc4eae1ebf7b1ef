#include "trainer/directory/metrics_reader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <deque>
#include <filesystem>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/measurement.h"
#include "trainer/checkpoint/json_fields.h"
#include "trainer/checkpoint/run_progress.h"

namespace longshore {
namespace {

// A step line of 10,000 ranks has 200 KiB.
constexpr JsonLimits kLineLimits{.max_bytes = 4 * kMiB, .max_depth = 16, .max_values = 1'000'000};

// LineReader returns a file's lines and offsets. A line over the limit is returned empty. Holes of
// a sparse file inside such a line are skipped, so a huge sparse file is not read.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : fd_(open_for_reading(path)) {}

  // Reads the next line without its newline; false at the end or before a torn last line.
  bool next(std::string& line) {
    line.clear();
    bool too_long = false;
    while (true) {
      if (at_ == filled_ && !fill(too_long)) return false;
      const auto begin = block_.begin() + static_cast<std::ptrdiff_t>(at_);
      const auto end = block_.begin() + static_cast<std::ptrdiff_t>(filled_);
      const auto newline = std::find(begin, end, '\n');
      const auto bytes = static_cast<size_t>(newline - begin);
      too_long = too_long || line.size() + bytes > static_cast<size_t>(kLineLimits.max_bytes);
      if (too_long) {
        line.clear();
      } else {
        line.append(begin, newline);
      }
      at_ += bytes;
      offset_ += static_cast<Bytes>(bytes);
      if (newline == end) continue;
      ++at_;
      ++offset_;
      return true;
    }
  }
  Bytes offset() const { return offset_; }

 private:
  bool fill(bool over_holes) {
    if (over_holes) skip_hole();
    ssize_t got = 0;
    do {
      got = ::read(fd_.get(), block_.data(), block_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw IoError("read", fd_.path(), errno);
    at_ = 0;
    filled_ = static_cast<size_t>(got);
    return got > 0;
  }

  void skip_hole() {
    const off_t here = ::lseek(fd_.get(), 0, SEEK_CUR);
    off_t data = ::lseek(fd_.get(), here, SEEK_DATA);
    if (data < 0 && errno == ENXIO) data = ::lseek(fd_.get(), 0, SEEK_END);
    // A file system without hole support returns the same offset.
    if (data > here) offset_ += data - here;
  }

  UniqueFd fd_;
  std::array<char, size_t{1} << 16> block_;
  size_t at_ = 0;
  size_t filled_ = 0;
  Bytes offset_ = 0;
};

std::optional<int64_t> step_of(const Json& object) {
  const auto step = object.find("step");
  if (step == object.end() || !is_whole_number(*step, 0, kMostSteps)) return std::nullopt;
  return step->get<int64_t>();
}

// Parses a line whose kind is one of `kinds`. Lines without such a word are not parsed.
bool read_line(const std::string& line, const std::vector<std::string_view>& kinds, Json& object,
               std::string& kind) {
  const auto named = [&line](std::string_view name) {
    return line.find(name) != std::string::npos;
  };
  if (!std::ranges::any_of(kinds, named)) return false;
  try {
    object = parse_json(line, kLineLimits, "");
  } catch (const DataError&) {
    return false;
  }
  if (!object.is_object()) return false;
  const auto found = object.find("kind");
  if (found == object.end() || !found->is_string()) return false;
  kind = found->get<std::string>();
  return std::ranges::find(kinds, kind) != kinds.end();
}

constexpr size_t kSteps = 100;

}  // namespace

std::optional<double> MetricsLine::number(const char* key) const {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

void read_metrics(const std::string& path, const std::vector<std::string_view>& kinds,
                  const std::function<bool(const MetricsLine&)>& use) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  LineReader reader(path);
  Json object;
  std::string kind;
  for (std::string line; reader.next(line);) {
    if (!read_line(line, kinds, object, kind)) continue;
    if (!use({kind, step_of(object), object, reader.offset()})) return;
  }
}

int64_t last_step_of_metrics(const std::string& path) {
  int64_t last = 0;
  read_metrics(path, {"step"}, [&last](const MetricsLine& line) {
    last = std::max(last, line.step.value_or(0));
    return true;
  });
  return last;
}

std::optional<double> measured_step_seconds(const std::string& metrics_path) {
  std::deque<double> seconds;
  read_metrics(metrics_path, {"step"}, [&](const MetricsLine& line) {
    const std::optional<double> taken = line.number("seconds");
    if (taken) seconds.push_back(*taken);
    if (seconds.size() > kSteps) seconds.pop_front();
    return true;
  });
  if (seconds.empty()) return std::nullopt;
  return median_of(std::vector<double>(seconds.begin(), seconds.end()));
}

}  // namespace longshore
