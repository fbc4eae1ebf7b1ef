// The kinds of failure that users see, each with its documented exit code. An error of the user's
// input carries every problem found, one line each; a bug of Longshore ends in LONGSHORE_CHECK.
// Plain values, any thread.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace longshore {

// Exit codes of the command line; 128 + N means "stopped by signal N after a successful save".
enum class ExitCode : int {
  kDone = 0,
  kFailure = 1,
  kConfig = 2,
  kDoesNotFit = 3,
  kOutOfMemory = 4,
  kData = 5,
  kCheckpoint = 6,
  kNonFinite = 7,
  kDistributed = 8,
  kInterrupted = 9,  // ended at once by a second signal; nothing more was saved
  kGpu = 10,
};

// Base of all errors that reach the user. `what()` is the whole text without the "error: " prefix.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

// The error of an exit code.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& text) : Error(kCode, text) {}
};

// The run file, the command line or a model's configuration is wrong. The error holds all problems
// found, one line each: location ("run.toml:12:1"), problem and remedy.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<std::string> problems);
  explicit ConfigError(std::string problem)
      : ConfigError(std::vector<std::string>{std::move(problem)}) {}
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// The plan does not fit the machine or a cap of the run file (exit 3).
using DoesNotFitError = ErrorOf<ExitCode::kDoesNotFit>;

// Device or host memory ran out at run time (exit 4). The text lists the owners of the memory.
using OutOfMemoryError = ErrorOf<ExitCode::kOutOfMemory>;

// An input file (weights, index, tokenizer, training data) is damaged or malformed (exit 5).
using DataError = ErrorOf<ExitCode::kData>;

// A checkpoint is missing, damaged or does not match the run (exit 6).
using CheckpointError = ErrorOf<ExitCode::kCheckpoint>;

// Too many steps in a row had a non-finite loss or gradient (exit 7).
using NonFiniteError = ErrorOf<ExitCode::kNonFinite>;

// Another rank died, hangs, disagrees, failed or cannot be reached (exit 8). The text names the
// rank, the operation with its sequence number and unit, and the time spent waiting.
using CommError = ErrorOf<ExitCode::kDistributed>;

// A GPU computes other results than the CPU, or its check did not end (exit 10).
using GpuError = ErrorOf<ExitCode::kGpu>;

// An operation of the system failed (exit 1). The text names operation, path and errno's text.
class IoError : public Error {
 public:
  explicit IoError(const std::string& text) : Error(ExitCode::kFailure, text) {}
  IoError(const std::string& operation, const std::string& path, int error_number);
  // Returns the number of errno(3); 0 if no call of the system failed.
  int error_number() const { return error_number_; }

 private:
  int error_number_ = 0;
};

// An invariant is broken: a bug in Longshore (exit 1).
class CheckFailure : public Error {
 public:
  explicit CheckFailure(const std::string& text) : Error(ExitCode::kFailure, text) {}
};

namespace internal {

// Collects the streamed values of a failed check and throws at the end of the full expression.
class CheckStream {
 public:
  CheckStream(const char* file, int line, const char* condition);
  CheckStream(const CheckStream&) = delete;
  CheckStream& operator=(const CheckStream&) = delete;
  ~CheckStream() noexcept(false);
  template <typename T>
  CheckStream& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

}  // namespace internal
}  // namespace longshore

// LONGSHORE_CHECK is active in every build. It checks invariants, never user input.
#define LONGSHORE_CHECK(condition)          \
  if (__builtin_expect(!!(condition), 1)) { \
  } else /* NOLINT */                       \
    ::longshore::internal::CheckStream(__FILE__, __LINE__, #condition)
