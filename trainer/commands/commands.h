// The commands of `longshore`, one function each, with their options as plain values. Each returns
// the process's exit code and throws Error for what the user must know. Main thread.
// Data goes to standard output, messages to standard error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "trainer/run/run_setup.h"
#include "trainer/verify/verify.h"

namespace longshore {

struct InitModelOptions {
  std::string directory;
  std::string preset = "tiny-llama";
  std::vector<std::string> text_files;  // train the tokenizer on these; none: bytes only
  int64_t vocabulary = 0;               // 0: the preset's
  uint64_t seed = 42;
};
int run_init_model(const InitModelOptions& options);

// 5 where anything failed.
int run_verify(const VerifyOptions& options, bool json);

struct TokenizerTrainOptions {
  std::vector<std::string> files;
  int64_t vocabulary = 4096;
  std::string output = "tokenizer.json";
};
int run_tokenizer_train(const TokenizerTrainOptions& options);

// Reads and checks everything that can be checked without allocating.
int run_validate(const RunArguments& run);

struct PlanOptions {
  bool json = false;
  bool schedule = false;  // the operations of a training step instead of the bytes
  std::string svg;        // a file for the schedule, drawn; empty: none
};
int run_plan(const RunArguments& run, const AssumedRanks& assumed, const PlanOptions& options);

// `trace_path`: where the timeline goes; empty: none.
int run_train(const RunArguments& run, const std::vector<std::string>& command,
              const std::string& trace_path);

// `source`: "auto" (the run's newest valid checkpoint, else the model), "model", or a directory.
int run_eval(const RunArguments& run, const std::string& source, bool json);

// Tokenises what `train` would, before it and apart from it. `clean`: then removes from the cache
// what no run has open and this one does not name.
int run_prepare(const RunArguments& run, bool clean);

struct InspectDataOptions {
  std::string rows = "0:3";  // of the files, before packing
  std::string html;          // a page to write; empty: none
  bool json = false;         // rows only, one object per line
  bool evaluation = false;   // data.eval instead of data.train
};
int run_inspect_data(const RunArguments& run, const InspectDataOptions& options);

// JSON strings from standard input, one per line, as arrays of ids.
int run_tokenize(const std::string& directory);

struct GenerateOptions {
  std::vector<std::string> prompts;
  std::string source = "auto";
  int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1.0;        // 1: all tokens
  bool json = false;
};
int run_generate(const RunArguments& run, const GenerateOptions& options);

struct ExportCommandOptions {
  std::string destination;  // empty: <run.dir>/hf
  std::string source = "auto";
  bool fp32 = false;
  bool allow_nonfinite = false;
};
int run_export(const RunArguments& run, const ExportCommandOptions& options);

int run_config_dump(const RunArguments& run, bool defaults, bool difference);
// `page`: as docs/run_file.md has them.
int run_config_keys(const std::string& section, bool page);
int run_config_schema();

int run_checkpoint_list(const RunArguments& run, bool json);
int run_checkpoint_verify(const RunArguments& run, bool json);
int run_checkpoint_prune(const RunArguments& run, int64_t keep);

// A run's loss curve, drawn in the terminal.
int run_plot(const std::string& run_directory);

struct ReportOptions {
  std::vector<std::string> directories;  // of runs, going on or not
  std::string html;                      // a page to write; empty: report.html in the first
};
int run_report(const ReportOptions& options);

struct BenchNvmeOptions {
  std::vector<std::string> directories;  // one per drive
  Bytes file_bytes = 4 * kGiB;           // of the scratch file in each
  double seconds = 2.0;                  // of each of the rounds
  bool json = false;
};
// Block size and depth for each directory's drive, its speed and its cost of CPU, beside fio's.
int run_bench_nvme(const BenchNvmeOptions& options);

struct BenchCopiesOptions {
  int gpu = 0;
  bool json = false;
};
// Copies between the host's arena and a GPU, beside the best cudaMemcpyAsync. ConfigError without a
// GPU.
int run_bench_copies(const BenchCopiesOptions& options);

// Compares a GPU with the CPU: 0, or kGpuExitCode and what differs.
int run_gpu_check(int gpu);

int run_version();

}  // namespace longshore
