#include "data/tokens/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"

namespace longshore {
namespace {

// Returns the names of the parts, of which those of columns are the rows' members.
constexpr auto part_names() {
  constexpr std::array kOthers = {"ids", "trained", "ends", "others"};
  std::array<const char*, kOthers.size() + kTokenColumns> names = {};
  std::ranges::copy(kOthers, names.begin());
  for (size_t c = 0; c < kTokenColumns; ++c) names[kOthers.size() + c] = kColumnTable[c].member;
  return names;
}
constexpr auto kPartNames = part_names();
static_assert(std::ranges::none_of(kPartNames, [](const char* name) { return name == nullptr; }));
constexpr const char* kProgressFile = "progress.json";
constexpr size_t kFlushBytes = size_t{1} << 20;
constexpr uint64_t kSectionAlignment = 64;
constexpr uint64_t kFilledAtOnce = uint64_t{1} << 16;

// Body: writes a file in order and collects the checksums of the pieces after the header.
class Body {
 public:
  explicit Body(UniqueFd fd) : fd_(std::move(fd)) {
    write_all(fd_, std::string(static_cast<size_t>(kTokenHeaderBytes), '\0'));
  }

  uint64_t offset() const { return kTokenHeaderBytes + written_ + piece_.size(); }
  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t space = static_cast<size_t>(kTokenPieceBytes) - piece_.size();
      const size_t count = std::min(space, bytes.size());
      piece_.append(reinterpret_cast<const char*>(bytes.data()), count);
      bytes = bytes.subspan(count);
      if (piece_.size() == static_cast<size_t>(kTokenPieceBytes)) end_piece();
    }
  }
  void align() {
    const uint64_t padding = (kSectionAlignment - offset() % kSectionAlignment) % kSectionAlignment;
    const std::string zeros(padding, '\0');
    append(bytes_of(zeros));
  }
  // Ends the last piece; no bytes may be appended after this call.
  std::vector<uint64_t> take_checksums() {
    if (!piece_.empty()) end_piece();
    return std::move(checksums_);
  }
  const UniqueFd& fd() const { return fd_; }

 private:
  void end_piece() {
    checksums_.push_back(hash64(piece_));
    write_all(fd_, piece_);
    written_ += piece_.size();
    piece_.clear();
  }

  UniqueFd fd_;
  std::string piece_;
  uint64_t written_ = 0;
  std::vector<uint64_t> checksums_;
};

// Calls `use` with the bytes of a file, one piece at a time.
void for_each_piece(const UniqueFd& fd, Bytes bytes,
                    const std::function<void(std::span<const std::byte>)>& use) {
  std::vector<std::byte> buffer(static_cast<size_t>(kTokenPieceBytes));
  for (Bytes offset = 0; offset < bytes; offset += kTokenPieceBytes) {
    const auto count = static_cast<size_t>(std::min(kTokenPieceBytes, bytes - offset));
    read_exact_at(fd, offset, std::span(buffer).first(count));
    use(std::span(buffer).first(count));
  }
}

// Appends bytes of value 0 or 1 as bits.
void append_bits(const UniqueFd& fd, Bytes count, Body& body) {
  static_assert(kTokenPieceBytes % 8 == 0);
  for_each_piece(fd, count, [&body](std::span<const std::byte> flags) {
    std::vector<std::byte> bits((flags.size() + 7) / 8);
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] != std::byte{0}) bits[i / 8] |= std::byte{1} << (i % 8);
    }
    body.append(bits);
  });
}

}  // namespace

void TokenFileWriter::Part::append(std::span<const std::byte> elements) {
  buffer.append(reinterpret_cast<const char*>(elements.data()), elements.size());
  bytes += static_cast<Bytes>(elements.size());
  if (buffer.size() >= kFlushBytes) flush();
}

void TokenFileWriter::Part::flush() {
  write_all(fd, buffer);
  hasher.update(buffer);
  buffer.clear();
}

TokenFileWriter::TokenFileWriter(std::string directory,
                                 const std::function<void()>& report_progress)
    : directory_(std::move(directory)) {
  static_assert(kPartNames.size() == kParts);
  std::error_code ignored;
  const std::string note = directory_ + "/" + kProgressFile;
  if (std::filesystem::exists(std::filesystem::symlink_status(note, ignored))) {
    const std::string problem = resume(report_progress);
    if (problem.empty()) return;
    log_warning(directory_ + ": what an earlier process prepared cannot be used (" + problem +
                "); it is removed, and the file is prepared from its start");
  }
  begin_anew();
}

std::string TokenFileWriter::part_path(size_t part) const {
  return directory_ + "/" + kPartNames[part];
}

std::string TokenFileWriter::resume(const std::function<void()>& report_progress) {
  if (is_symbolic_link(directory_)) return "a symbolic link";
  try {
    const std::string path = directory_ + "/" + kProgressFile;
    const Json note = parse_json(read_own_file(path, JsonLimits().max_bytes), {}, path);
    const Json& progress = note.at("progress");
    if (note.at("hash") != hash_text(hash64(progress.dump()))) return path + ": damaged";
    resume_parts(progress, report_progress);
    return "";
  } catch (const Json::exception&) {
    return "its progress is not readable";
  } catch (const IoError& error) {
    return error.what();
  } catch (const DataError& error) {
    return error.what();
  }
}

void TokenFileWriter::resume_parts(const Json& progress,
                                   const std::function<void()>& report_progress) {
  totals_.tokens = progress.at("tokens").get<uint64_t>();
  totals_.trained_tokens = progress.at("trained_tokens").get<uint64_t>();
  totals_.documents = progress.at("documents").get<uint64_t>();
  totals_.other_targets = progress.at("other_targets").get<uint64_t>();
  totals_.longest_document = progress.at("longest_document").get<uint64_t>();
  totals_.columns = progress.at("columns").get<uint64_t>();
  totals_.teacher_tokens = progress.at("teacher_tokens").get<uint64_t>();
  std::array<uint64_t, kParts> bytes = {4 * totals_.tokens, totals_.tokens, 8 * totals_.documents,
                                        sizeof(OtherTarget) * totals_.other_targets};
  for (size_t c = 0; c < kTokenColumns; ++c) {
    bytes[kColumns + c] = sizeof(float) * totals_.width_of(c) * totals_.tokens;
  }
  for (size_t p = 0; p < kParts; ++p) {
    Part& part = parts_[p];
    part.fd = open_own_file(part_path(p), O_RDWR);
    part.bytes = static_cast<Bytes>(bytes[p]);
    for_each_piece(part.fd, part.bytes, [&](std::span<const std::byte> piece) {
      part.hasher.update(piece);
      report_progress();
    });
    if (progress.at("hashes").at(p) != hash_text(part.hasher.digest())) {
      throw DataError(part_path(p) + ": damaged");
    }
    if (::ftruncate(part.fd.get(), part.bytes) != 0) {
      throw IoError("truncate", part_path(p), errno);
    }
    if (::lseek(part.fd.get(), part.bytes, SEEK_SET) < 0)
      throw IoError("seek", part_path(p), errno);
  }
  state_ = progress.at("state");
}

void TokenFileWriter::begin_anew() {
  remove_tree(directory_);
  make_own_directory(directory_);
  totals_ = {};
  state_ = nullptr;
  for (size_t part = 0; part < kParts; ++part) {
    parts_[part] = {};
    parts_[part].fd = open_own_file(part_path(part), O_RDWR | O_CREAT | O_EXCL);
  }
}

// The file has a column from the first block on that has one; other documents get its default.
void TokenFileWriter::append_columns(const TokenBlock& block) {
  if (block.columns.teacher_tokens > 0) totals_.teacher_tokens = block.columns.teacher_tokens;
  for (size_t c = 0; c < kTokenColumns; ++c) {
    Part& part = parts_[kColumns + c];
    const std::vector<float>& values = block.columns[c];
    const uint64_t width = width_of_column(c, totals_.teacher_tokens);
    LONGSHORE_CHECK(values.empty() || values.size() == width * block.ids.size())
        << kPartNames[kColumns + c];
    const auto fill = [&](uint64_t count) {
      while (count > 0) {
        const std::vector<float> some(std::min(count, kFilledAtOnce), default_of(c));
        part.append(std::as_bytes(std::span(some)));
        count -= some.size();
      }
    };
    if (!values.empty() && !totals_.has_column(c)) {
      totals_.columns |= uint64_t{1} << c;
      fill(width * totals_.tokens);
    }
    part.append(std::as_bytes(std::span(values)));
    if (values.empty() && totals_.has_column(c)) fill(width * block.ids.size());
  }
}

void TokenFileWriter::append(const TokenBlock& block) {
  LONGSHORE_CHECK(block.ids.size() == block.trained.size());
  append_columns(block);
  std::vector<OtherTarget> others = block.others;
  for (OtherTarget& other : others) other.token += totals_.tokens;
  std::vector<uint64_t> ends;
  ends.reserve(block.lengths.size());
  uint64_t end = totals_.tokens;
  for (const uint64_t length : block.lengths) {
    ends.push_back(end += length);
    totals_.longest_document = std::max(totals_.longest_document, length);
  }
  LONGSHORE_CHECK(end == totals_.tokens + block.ids.size());
  for (const size_t document : block.rows_go_on) ends.at(document) |= kRowGoesOn;
  for (const size_t document : block.undesirable) ends.at(document) |= kUndesirable;
  parts_[kIds].append(std::as_bytes(std::span(block.ids)));
  parts_[kTrained].append(std::as_bytes(std::span(block.trained)));
  parts_[kEnds].append(std::as_bytes(std::span(ends)));
  parts_[kOthers].append(std::as_bytes(std::span(others)));
  totals_.tokens = end;
  totals_.documents += block.lengths.size();
  totals_.other_targets += others.size();
  totals_.trained_tokens +=
      static_cast<uint64_t>(std::count(block.trained.begin(), block.trained.end(), 1));
}

void TokenFileWriter::save(const Json& state) {
  Json hashes = Json::array();
  for (Part& part : parts_) {
    part.flush();
    sync_file(part.fd);
    hashes.push_back(hash_text(part.hasher.digest()));
  }
  const Json progress = {{"tokens", totals_.tokens},
                         {"trained_tokens", totals_.trained_tokens},
                         {"documents", totals_.documents},
                         {"other_targets", totals_.other_targets},
                         {"longest_document", totals_.longest_document},
                         {"columns", totals_.columns},
                         {"teacher_tokens", totals_.teacher_tokens},
                         {"hashes", hashes},
                         {"state", state}};
  const Json note = {{"hash", hash_text(hash64(progress.dump()))}, {"progress", progress}};
  write_file_durably(directory_ + "/" + kProgressFile, note.dump());
  state_ = state;
}

void TokenFileWriter::finish(const std::string& path, TokenFileHeader header,
                             const std::string& report) {
  for (Part& part : parts_) part.flush();
  const std::string temporary = path + ".writing";
  remove_tree(temporary);  // of a process that was killed
  Body body(open_own_file(temporary, O_WRONLY | O_CREAT | O_EXCL));
  const auto copy = [&body](std::span<const std::byte> piece) { body.append(piece); };
  header.tokens = totals_.tokens;
  header.trained_tokens = totals_.trained_tokens;
  header.documents = totals_.documents;
  header.other_targets = totals_.other_targets;
  header.longest_document = totals_.longest_document;
  header.ids_offset = body.offset();
  for_each_piece(parts_[kIds].fd, parts_[kIds].bytes, copy);
  body.align();
  header.mask_offset = body.offset();
  append_bits(parts_[kTrained].fd, parts_[kTrained].bytes, body);
  body.align();
  header.columns = totals_.columns;
  header.teacher_tokens = totals_.teacher_tokens;
  if (header.columns != 0) header.columns_offset = body.offset();
  for (size_t part = kColumns; part < kParts; ++part) {
    for_each_piece(parts_[part].fd, parts_[part].bytes, copy);
  }
  body.align();
  header.ends_offset = body.offset();
  for_each_piece(parts_[kEnds].fd, parts_[kEnds].bytes, copy);
  body.align();
  header.others_offset = body.offset();
  for_each_piece(parts_[kOthers].fd, parts_[kOthers].bytes, copy);
  body.align();
  header.report_offset = body.offset();
  body.append(bytes_of(report));
  body.align();
  header.checksums_offset = body.offset();
  const std::vector<uint64_t> checksums = body.take_checksums();
  header.file_bytes = header.checksums_offset + checksums.size() * sizeof(uint64_t);
  write_all(body.fd(), std::as_bytes(std::span(checksums)));

  std::string head("LNGSHTOK");
  const std::array<uint32_t, 2> version = {header.version(), 0};
  head.append(reinterpret_cast<const char*>(version.data()), sizeof version);
  head.append(reinterpret_cast<const char*>(&header), number_bytes(header.version()));
  const uint64_t checksum = hash64(head);
  head.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  write_exact_at(body.fd(), 0, bytes_of(head));
  sync_file(body.fd());
  if (::rename(temporary.c_str(), path.c_str()) != 0) throw IoError("rename to", path, errno);
  sync_directory(parent_of(path));
  remove_tree(directory_);
}

}  // namespace longshore
