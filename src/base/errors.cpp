#include "base/errors.h"

#include <cerrno>
#include <cstring>

namespace longshore {
namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  return text;
}

constexpr const char* kFileLimit =
    ", the limit of ulimit -f or of the file system; raise it, or name another directory";

}  // namespace

ConfigError::ConfigError(std::vector<std::string> problems)
    : Error(ExitCode::kConfig, join_lines(problems)), problems_(std::move(problems)) {}

IoError::IoError(const std::string& operation, const std::string& path, int error_number)
    : Error(ExitCode::kFailure, operation + " " + path + ": " + std::strerror(error_number) +
                                    (error_number == EFBIG ? kFileLimit : "")),
      error_number_(error_number) {}

namespace internal {

CheckStream::CheckStream(const char* file, int line, const char* condition) {
  text_ << "internal error: " << file << ":" << line << ": check failed: " << condition << " ";
}

CheckStream::~CheckStream() noexcept(false) {
  throw CheckFailure(text_.str());
}

}  // namespace internal
}  // namespace longshore
