#include "base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/errors.h"
#include "base/hash.h"
#include "base/open_retrying.h"
#include "base/random_word.h"

namespace longshore {
namespace {

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

constexpr std::string_view kTemporaryMark = ".tmp.";

// A new file beside the target. It is removed unless it was renamed to the target.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : path_(target + std::string(kTemporaryMark) + hash_text(random_word())),
        fd_(open_own_file(path_, O_WRONLY | O_CREAT | O_EXCL)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) ::unlink(path_.c_str());
  }

  const UniqueFd& fd() const { return fd_; }
  void rename_to(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) throw IoError("rename to", target, errno);
    renamed_ = true;
  }

 private:
  std::string path_;
  UniqueFd fd_;
  bool renamed_ = false;
};

}  // namespace

UniqueFd open_own_file(const std::string& path, int flags) {
  // O_NONBLOCK keeps the call from waiting for the other end of a pipe.
  UniqueFd fd(open_retrying(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644), path);
  if (!fd.valid()) {
    if (errno == ELOOP) {
      throw IoError("open " + path +
                    ": a symbolic link, which is not followed here; remove it, or put the file "
                    "itself there");
    }
    // ENXIO means a pipe without a reader.
    if (errno == ENXIO) throw IoError("open " + path + ": not a regular file");
    throw IoError("open", path, errno);
  }
  file_bytes(fd);  // throws unless it is a regular file
  return fd;
}

std::string read_own_file(const std::string& path, Bytes max_bytes) {
  return read_to_end(open_own_file(path, O_RDONLY), max_bytes);
}

// base/file.h declares this function.
void write_file_durably(const std::string& path, std::string_view text) {
  TemporaryFile temporary(path);
  write_all(temporary.fd(), text);
  sync_file(temporary.fd());
  temporary.rename_to(path);
  sync_directory(parent_of(path));
}

void replace_file(const std::string& path, std::string_view text) {
  TemporaryFile temporary(path);
  write_all(temporary.fd(), text);
  temporary.rename_to(path);
}

void write_output_file(const std::string& path, std::string_view text) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return write_file_durably(path, text);
  const bool replaceable = S_ISREG(status.st_mode) && !is_symbolic_link(path);
  if (replaceable) return write_file_durably(path, text);
  const UniqueFd fd = create_file(path);
  write_all(fd, text);
  if (S_ISREG(status.st_mode)) sync_file(fd);
}

bool is_temporary_of(std::string_view name, std::string_view target) {
  if (!name.starts_with(target)) return false;
  name.remove_prefix(target.size());
  if (!name.starts_with(kTemporaryMark)) return false;
  return parse_hash(name.substr(kTemporaryMark.size())).has_value();
}

bool is_symbolic_link(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

void make_own_directory(const std::string& path) {
  if (is_symbolic_link(path)) {
    throw IoError(path +
                  ": a symbolic link, through which a run writes nothing; put a directory there "
                  "(the run's whole directory may be a link)");
  }
  make_directories(path);
}

}  // namespace longshore
