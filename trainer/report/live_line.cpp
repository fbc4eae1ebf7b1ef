#include "trainer/report/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "base/file.h"
#include "base/log.h"

namespace longshore {
namespace {

constexpr int kUnknownColumns = 80;
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";
constexpr const char* kEraseLine = "\r\x1b[K";

struct Field {
  std::string text;
  int rank = 0;  // fields of the highest rank go first where the room is small
  const char* colour = "";
};

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  char text[160];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

// "dev 21.8/22.0 GiB"; megabytes where the plan is small.
std::string memory_text(const char* tier, Bytes used, Bytes plan) {
  const bool small = plan < kGiB;
  const double unit = static_cast<double>(small ? kMiB : kGiB);
  return text_of("%s %.1f/%.1f %s", tier, static_cast<double>(used) / unit,
                 static_cast<double>(plan) / unit, small ? "MiB" : "GiB");
}

std::vector<Field> fields_of(const LiveStatus& status) {
  std::vector<Field> fields;
  const auto steps = text_of("step %lld/%lld", static_cast<long long>(status.step),
                             static_cast<long long>(status.total_steps));
  fields.push_back({steps, 0, kBold});
  fields.push_back({text_of("loss %.4f", status.loss), 1, kBold});
  if (status.skipped) fields.push_back({"skipped", 1, kYellow});
  fields.push_back({text_of("lr %.2g", status.lr), 4});
  fields.push_back({text_of("norm %.3g", status.grad_norm), 5});
  fields.push_back({format_count(std::llround(status.tokens_per_second)) + " tok/s", 3});
  if (status.mfu) fields.push_back({text_of("MFU %.0f %%", *status.mfu * 100), 6});
  if (status.plan_ratio) {
    fields.push_back({text_of("%.0f %% of plan", *status.plan_ratio * 100), 8});
  }
  if (!status.wall.empty()) fields.push_back({"wall: " + status.wall, 7});
  if (status.device_plan_bytes > 0) {
    fields.push_back({memory_text("dev", status.device_bytes, status.device_plan_bytes), 9, kDim});
  }
  if (status.host_plan_bytes > 0) {
    fields.push_back({memory_text("host", status.host_bytes, status.host_plan_bytes), 10, kDim});
  }
  if (status.eta_seconds) fields.push_back({"ETA " + format_duration(*status.eta_seconds), 2});
  return fields;
}

int line_width(const std::vector<Field>& fields) {
  int width = 0;
  for (const Field& field : fields) width += static_cast<int>(field.text.size()) + 2;
  return width - 2;
}

}  // namespace

std::string format_duration(double seconds) {
  const long long whole = std::isfinite(seconds) ? std::max(0ll, std::llround(seconds)) : 0;
  const long long minutes = whole / 60 % 60;
  const long long hours = whole / 3600;
  if (hours >= 24) return text_of("%lldd %02lld:%02lld", hours / 24, hours % 24, minutes);
  if (hours > 0) return text_of("%lld:%02lld:%02lld", hours, minutes, whole % 60);
  return text_of("%lld:%02lld", minutes, whole % 60);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ' ');
  }
  return digits;
}

std::string format_live_line(const LiveStatus& status, int columns, bool colour) {
  std::vector<Field> fields = fields_of(status);
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

LiveLineOptions LiveLine::options_of_stderr(int64_t every_steps) {
  LiveLineOptions options;
  options.fd = STDERR_FILENO;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  // A dumb terminal knows no escape sequences: it gets plain lines.
  options.terminal = ::isatty(STDERR_FILENO) == 1 && !dumb;
  options.colour = log_uses_colour();
  options.every_steps = std::max<int64_t>(every_steps, 1);
  return options;
}

int LiveLine::columns_now() const {
  struct winsize size{};
  if (::ioctl(options_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return options_.columns > 0 ? options_.columns : kUnknownColumns;
}

void LiveLine::show(const LiveStatus& status) {
  if (options_.terminal) {
    // One column stays free: a full line would wrap, and a carriage return stays on its end.
    const int columns = std::max(columns_now() - 1, 1);
    write(kEraseLine + format_live_line(status, columns, options_.colour));
    drawn_ = true;
    return;
  }
  const bool last = status.step == status.total_steps;
  if (status.step % options_.every_steps != 0 && !last && !status.skipped) return;
  write(format_live_line(status, 0, options_.colour) + "\n");
}

void LiveLine::clear() {
  if (drawn_) write(kEraseLine);
  drawn_ = false;
}

void LiveLine::finish() {
  if (drawn_) write("\n");
  drawn_ = false;
}

// Progress that cannot be shown is no reason to end a run.
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
