#include "trainer/use/answer_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"
#include "data/sources/row_source.h"

namespace longshore {
namespace {

constexpr Bytes kMostSettingsBytes = kMiB;

UniqueFd open_and_lock(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) throw IoError("open", path, errno);
  UniqueFd file(fd, path);
  file_bytes(file);  // refuses a pipe or a device, with which no start could go on
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw ConfigError("--out " + path + ": another process writes it; name another file");
  }
  return file;
}

// Returns the names of members that differ, with both values.
std::string difference_of(const Json& before, const Json& now) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : now.items()) {
    const Json former = before.is_object() ? before.value(name, Json()) : Json();
    if (former == value) continue;
    parts.push_back(name + " was " + printable(json_text(former)) + " and is " +
                    printable(json_text(value)));
  }
  return joined(parts, ", ");
}

}  // namespace

AnswerFile::AnswerFile(const std::string& path, const Json& settings, int64_t samples)
    : path_(path), fd_(open_and_lock(path)) {
  const std::string beside = settings_path(path);
  const std::string remedy = "; name another file, or remove " + path + " to begin anew";
  if (file_bytes(fd_) == 0) {
    write_file_durably(beside, json_text(settings, 2) + "\n");
    return;
  }
  if (!std::filesystem::exists(beside)) {
    throw ConfigError("--out " + path + ": the file has lines, but " + beside +
                      ", which says what they follow from, does not exist" + remedy);
  }
  Json before;
  try {
    before = parse_json(read_own_file(beside, kMostSettingsBytes), {}, beside);
  } catch (const DataError& error) {
    throw ConfigError("--out " + path + ": " + error.what() + remedy);
  }
  const std::string difference = difference_of(before, settings);
  if (!difference.empty()) {
    throw ConfigError("--out " + path + ": its answers have other settings: " + difference +
                      remedy);
  }
  cut_torn_line();
  check_lines(samples);
}

// Cuts off what follows the last line feed.
void AnswerFile::cut_torn_line() {
  Bytes offset = 0, end = 0;
  read_in_pieces(fd_, [&](std::span<const std::byte> piece) {
    const std::string_view text(reinterpret_cast<const char*>(piece.data()), piece.size());
    const size_t last = text.rfind('\n');
    if (last != std::string_view::npos) end = offset + static_cast<Bytes>(last) + 1;
    offset += std::ssize(piece);
  });
  if (end < offset && ::ftruncate(fd_.get(), end) != 0) throw IoError("truncate", path_, errno);
  if (::lseek(fd_.get(), end, SEEK_SET) < 0) throw IoError("seek", path_, errno);
}

void AnswerFile::check_lines(int64_t samples) {
  JsonlReader reader(path_);
  for (JsonlLine line; reader.next(line); ++found_) {
    if (line.too_long) continue;
    const std::string where = path_ + ":" + std::to_string(line.number) + ": ";
    Json answer;
    try {
      answer = parse_json(line.text, {}, path_);
    } catch (const DataError&) {
      answer = nullptr;
    }
    const Json index = answer.is_object() ? answer.value("index", Json()) : Json();
    const Json sample = answer.is_object() ? answer.value("sample", Json()) : Json();
    if (index == found_ / samples && sample == found_ % samples) continue;
    throw ConfigError("--out " + where + "expected the answer of row " +
                      std::to_string(found_ / samples) + ", sample " +
                      std::to_string(found_ % samples) +
                      "; the file was changed since; name another file, or remove it to begin "
                      "anew");
  }
}

void AnswerFile::add(const Json& answer) {
  write_all(fd_, json_text(answer) + "\n");
}

}  // namespace longshore
