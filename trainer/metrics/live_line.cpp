#include "trainer/metrics/live_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int kUnknownColumns = 80, kUnknownRows = 24;
constexpr int kRowsOfDisplay = 6;  // with fewer rows the display is one line
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";
constexpr const char* kEraseLine = "\r\x1b[K";
constexpr const char* kEraseBelow = "\r\x1b[J";

struct Field {
  std::string text;
  int rank = 0;  // fields of the highest rank are dropped first
  const char* colour = "";
};

// Formats "dev 21.8/22.0 GiB", or MiB if the plan is below 1 GiB.
std::string memory_text(const char* tier, Bytes used, Bytes plan) {
  const bool small = plan < kGiB;
  const double unit = static_cast<double>(small ? kMiB : kGiB);
  return formatted("%s %.1f/%.1f %s", tier, static_cast<double>(used) / unit,
                   static_cast<double>(plan) / unit, small ? "MiB" : "GiB");
}

Field step_field(const StepRecord& step, const LiveRun& run) {
  return {formatted("step %lld/%lld", static_cast<long long>(step.step.value),
                    static_cast<long long>(run.total_steps)),
          0, kBold};
}

std::vector<Field> number_fields(const StepRecord& step, const LiveRun& run) {
  std::vector<Field> fields;
  fields.push_back({"loss " + format_loss(step.loss), 1, kBold});
  if (run.mean_loss) fields.push_back({"mean " + format_loss(*run.mean_loss), 7});
  if (step.skipped) fields.push_back({"skipped", 1, kYellow});
  fields.push_back({formatted("lr %.2g", step.lr), 4});
  fields.push_back({formatted("grad norm %.3g", step.grad_norm), 5});
  fields.push_back({format_count(std::llround(step.tokens_per_second)) + " tok/s", 3});
  if (const double* const margin = figure_of(step.figures, "rewards/margins")) {
    fields.push_back({"margin " + format_loss(*margin), 2});
    if (const double* const right = figure_of(step.figures, "rewards/accuracies")) {
      fields.back().text += formatted(", %.0f %% right", *right * 100);
    }
  }
  if (const double* const kl = figure_of(step.figures, "kl")) {
    fields.push_back({"kl " + format_loss(*kl), 3});
  }
  if (step.token_accuracy) {
    fields.push_back({formatted("token accuracy %.1f %%", 100.0 * *step.token_accuracy), 6});
  }
  if (step.entropy) fields.push_back({formatted("entropy %.2f", *step.entropy), 7});
  if (step.aux_loss) fields.push_back({"aux " + format_loss(*step.aux_loss), 4});
  if (step.router) {
    fields.push_back({formatted("experts up to %.1fx, %lld idle, entropy %.2f", step.router->most,
                                static_cast<long long>(step.router->idle), step.router->entropy),
                      6});
  }
  return fields;
}

std::vector<Field> memory_fields(const MemoryRecord& memory, const LiveRun& run) {
  std::vector<Field> fields;
  if (memory.device_plan > 0) {
    fields.push_back({memory_text("dev", memory.device_peak, memory.device_plan), 9, kDim});
  }
  if (run.host_plan_bytes > 0) {
    fields.push_back({memory_text("host", memory.host_rss, run.host_plan_bytes), 10, kDim});
  }
  return fields;
}

std::vector<Field> fields_of(const StepRecord& step, const LiveRun& run) {
  std::vector<Field> fields = {step_field(step, run)};
  const auto append = [&fields](std::vector<Field> more) {
    fields.insert(fields.end(), more.begin(), more.end());
  };
  append(number_fields(step, run));
  if (step.epoch > 0.0) fields.push_back({formatted("epoch %.2f", step.epoch), 6});
  if (!run.wall.empty()) fields.push_back({"bottleneck: " + run.wall, 7});
  append(memory_fields(step.memory, run));
  if (run.eta_seconds) fields.push_back({"ETA " + format_duration(*run.eta_seconds), 2});
  return fields;
}

// Returns a progress bar: "[####......]".
std::string bar_text(double part, int places) {
  const int full = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * places));
  return "[" + std::string(static_cast<size_t>(full), '#') +
         std::string(static_cast<size_t>(places - full), '.') + "]";
}

// The bar fills the columns that the other fields leave free.
std::vector<Field> progress_fields(const StepRecord& step, const LiveRun& run, int columns) {
  const double done = run.total_steps > 0 ? static_cast<double>(step.step.value) /
                                                static_cast<double>(run.total_steps)
                                          : 0.0;
  std::vector<Field> fields = {step_field(step, run), {formatted("%.0f %%", done * 100), 2}};
  if (step.epoch > 0.0) fields.push_back({formatted("epoch %.2f", step.epoch), 4});
  if (run.eta_seconds) fields.push_back({"ETA " + format_duration(*run.eta_seconds), 1});
  int taken = 0;
  for (const Field& field : fields) taken += static_cast<int>(field.text.size()) + 2;
  constexpr int kLeast = 8, kMost = 60;  // characters of a useful bar
  const int places = std::min(columns - taken - 2, kMost);
  if (places >= kLeast) fields.insert(fields.begin() + 1, {bar_text(done, places), 3});
  return fields;
}

// The lane of the optimizer is named by its work; the others are copies and collectives.
std::string words_of(const std::string& lane) {
  return lane == "update" ? "optimizer" : lane;
}

// Returns the step's compute time and its waits, the longest first.
std::vector<Field> time_fields(const StepRecord& step, const std::string& known_wall) {
  if (step.seconds <= 0.0) return {};
  std::vector<std::pair<std::string, double>> waits = step.stall_seconds;
  std::ranges::stable_sort(waits, std::ranges::greater{}, &std::pair<std::string, double>::second);
  double waited = 0.0;
  for (const auto& [lane, seconds] : waits) waited += seconds;
  const auto share = [&step](double seconds) {
    return std::lround(std::clamp(seconds / step.seconds, 0.0, 1.0) * 100);
  };
  std::vector<Field> fields = {{formatted("%.2f s a step", step.seconds), 1}};
  const double computed = std::max(0.0, step.seconds - waited);
  fields.push_back({formatted("compute %ld %%", share(computed)), 3});
  int rank = 4;
  for (const auto& [lane, seconds] : waits) {
    if (share(seconds) == 0) break;
    fields.push_back(
        {"waits for " + words_of(lane) + formatted(" %ld %%", share(seconds)), rank++});
  }
  const bool waits_most = !waits.empty() && waits.front().second > computed;
  const std::string wall = !known_wall.empty() ? known_wall
                           : waits_most        ? words_of(waits.front().first)
                                               : "compute";
  fields.push_back({"bottleneck: " + wall, 2, kYellow});
  return fields;
}

int line_width(const std::vector<Field>& fields) {
  int width = 0;
  for (const Field& field : fields) width += static_cast<int>(field.text.size()) + 2;
  return width - 2;
}

// Drops the fields of the highest rank until the rest fits.
std::string fitted_line(std::vector<Field> fields, int columns, bool colour) {
  while (columns > 0 && fields.size() > 1 && line_width(fields) > columns) {
    const auto by_rank = [](const Field& a, const Field& b) { return a.rank < b.rank; };
    fields.erase(std::max_element(fields.begin(), fields.end(), by_rank));
  }
  if (columns > 0 && line_width(fields) > columns) {
    fields[0].text.resize(static_cast<size_t>(columns));
  }
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += "  ";
    const bool painted = colour && *field.colour != '\0';
    line += painted ? field.colour + field.text + kPlain : field.text;
  }
  return line;
}

}  // namespace

std::string format_live_line(const StepRecord& step, const LiveRun& run, int columns, bool colour) {
  return fitted_line(fields_of(step, run), columns, colour);
}

std::vector<std::string> format_display(const StepRecord& step, const LiveRun& run, int columns,
                                        int rows, bool colour) {
  if (rows < kRowsOfDisplay) return {format_live_line(step, run, columns, colour)};
  std::vector<Field> memory = memory_fields(step.memory, run);
  Bytes drives = 0;
  for (const auto& [name, bytes] : step.bytes) {
    if (name.starts_with("drive_") || name == "file_read") drives += bytes;
  }
  if (drives > 0) memory.push_back({"drives " + format_bytes(drives) + " a step", 11, kDim});
  std::vector<std::string> lines;
  for (const std::vector<Field>& fields :
       {progress_fields(step, run, columns), number_fields(step, run), time_fields(step, run.wall),
        memory}) {
    if (!fields.empty()) lines.push_back(fitted_line(fields, columns, colour));
  }
  return lines;
}

LiveLineOptions LiveLine::options_of_stderr(int64_t every_steps) {
  LiveLineOptions options;
  options.fd = STDERR_FILENO;
  options.terminal = stderr_redraws();
  options.colour = log_uses_colour();
  options.quiet = !progress_is_wanted();
  options.every_steps = std::max<int64_t>(every_steps, 1);
  return options;
}

TerminalSize LiveLine::size_now() const {
  const TerminalSize size = terminal_size(options_.fd);
  if (size.columns > 0 && size.rows > 0) return size;
  return {options_.columns > 0 ? options_.columns : kUnknownColumns,
          options_.rows > 0 ? options_.rows : kUnknownRows};
}

std::string LiveLine::back_to_its_begin() const {
  if (drawn_ < 2) return kEraseLine;
  return "\x1b[" + std::to_string(drawn_ - 1) + "A" + kEraseBelow;
}

void LiveLine::show(const StepRecord& step, const LiveRun& run) {
  if (options_.quiet) return;
  if (options_.terminal) {
    // The last column stays free, because a full line would wrap before "\r" returns.
    const TerminalSize size = size_now();
    const std::vector<std::string> lines =
        format_display(step, run, std::max(size.columns - 1, 1), size.rows, options_.colour);
    // A single write never leaves half a display visible.
    std::string text = back_to_its_begin();
    for (size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\n" : "") + lines[i];
    write(text);
    drawn_ = lines.size();
    return;
  }
  const bool last = step.step.value == run.total_steps;
  if (step.step.value % options_.every_steps != 0 && !last && !step.skipped) return;
  write(format_live_line(step, run, 0, options_.colour) + "\n");
}

void LiveLine::clear() {
  if (drawn_ > 0) write(back_to_its_begin());
  drawn_ = 0;
}

void LiveLine::make_room_for(std::string_view text) {
  if (drawn_ == 0) return;
  const auto columns = static_cast<size_t>(std::max(size_now().columns, 1));
  size_t rows = drawn_ - 1;  // from the display's first line to the cursor
  size_t filled = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++rows;
      filled = 0;
    } else if (++filled > columns) {
      ++rows;
      filled = 1;
    }
  }
  while (text.starts_with('\n')) text.remove_prefix(1);
  write("\x1b[" + std::to_string(rows) + "A" + kEraseBelow + std::string(text));
  drawn_ = 0;
}

void LiveLine::finish() {
  if (drawn_ > 0) write("\n");
  drawn_ = 0;
}

// A failed write is ignored, because missing progress output must not end a run.
void LiveLine::write(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t put = ::write(options_.fd, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    rest.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace longshore
