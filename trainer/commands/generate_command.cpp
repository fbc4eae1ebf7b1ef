// The `generate` command continues prompts, answers them as a chat, or answers the rows of a file.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "offload/plan/decode_plan.h"
#include "trainer/commands/command.h"
#include "trainer/use/file_generation.h"
#include "trainer/use/generator.h"
#include "trainer/use/loaded_run.h"
#include "trainer/use/prompt_writer.h"

namespace longshore {
namespace {

constexpr int64_t kMostSamples = 1 << 20;

struct GenerateOptions {
  RunArguments run;
  std::vector<std::string> prompts;
  std::string source = "auto";
  std::string system;  // message of the chat; empty: none
  std::string in, out;
  std::vector<std::string> stop;
  bool chat = false;
  int64_t max_new_tokens = 64;
  int64_t samples = 1;
  int64_t sequences = kMostSequences;  // at the same time, at most
  double temperature = 0.0;            // 0: the most likely token
  int64_t top_k = 0;                   // 0: all tokens
  double top_p = 1.0;                  // 1: all tokens
  double min_p = 0.0;                  // 0: all tokens
  bool logprobs = false;
  bool json = false;

  bool of_file() const { return !in.empty() || !out.empty(); }
};

// A directory that --from names may hold any model, so the output does not mention its training.
std::string describe_origin(const LoadedRun& run, const std::string& source) {
  if (run.step.value > 0) return run.origin + ", step " + std::to_string(run.step.value);
  const bool own = source == "auto" || source == "model";
  return run.origin + (own ? ", as it was before training" : "");
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::equivalent(one, other, ignored);
}

void require_finite(const LoadedRun& run, const Answer& answer) {
  if (answer.finish != Finish::kNonFinite) return;
  throw NonFiniteError(run.origin +
                       ": the model's scores are not finite; its weights hold NaN "
                       "or infinite values, or overflow");
}

// Request holds what the options ask for, with the prompts as tokens. It is made before the engine,
// whose plan has states for these prompts.
class Request {
 public:
  Request(const GenerateOptions* options, const MeasuredRun& setup)
      : options_(options),
        writer_(setup.config, setup.source->directory(),
                options->chat ? PromptWriter::Form::kMessages : PromptWriter::Form::kText,
                "--chat"),
        limits_{.longest = setup.config.data.max_tokens,
                .vocabulary = vocabulary_of(setup.source->spec())} {
    settings_ = {.stops = writer_.stops(),
                 .stop_strings = options->stop,
                 .max_new_tokens = options->max_new_tokens,
                 .samples = options->samples,
                 .sampling = {.temperature = options->temperature,
                              .top_k = options->top_k,
                              .top_p = options->top_p,
                              .min_p = options->min_p,
                              .seed = static_cast<uint64_t>(setup.config.run.seed)},
                 .with_logps = options->logprobs};
    if (options->of_file()) {
      survey_ =
          survey_prompts(options->in, writer_, options->system, options->max_new_tokens, limits_);
    }
    for (const std::string& text : options->prompts) {
      prompts_.push_back(options->chat ? writer_.write_messages(asking(opening(), text))
                                       : writer_.write(text));
      check(prompts_.back());
    }
  }

  // Throws ConfigError if the model cannot continue the prompt.
  void check(const Prompt& prompt) const {
    const std::string problem = problem_of(prompt, options_->max_new_tokens, limits_);
    if (!problem.empty()) throw ConfigError(problem);
  }

  // Returns what the plan is to hold. A conversation may grow up to data.max_tokens.
  DecodeNeeds needs() const {
    if (!options_->of_file() && prompts_.empty()) return {};
    int64_t longest = survey_.longest;
    for (const Prompt& prompt : prompts_) longest = std::max(longest, std::ssize(prompt.tokens));
    const int64_t rows = options_->of_file() ? survey_.rows : std::ssize(prompts_);
    const int64_t most = options_->sequences;
    return {.sequences = rows < most ? std::min(most, rows * options_->samples) : most,
            .longest = longest + options_->max_new_tokens};
  }

  // Returns the beginning of a conversation, and one with the user's next message.
  Json opening() const {
    Json messages = Json::array();
    if (!options_->system.empty()) {
      messages.push_back({{"role", "system"}, {"content", options_->system}});
    }
    return messages;
  }
  static Json asking(Json messages, const std::string& text) {
    messages.push_back({{"role", "user"}, {"content", text}});
    return messages;
  }

  const PromptWriter& writer() const { return writer_; }
  const GenerateSettings& settings() const { return settings_; }
  const std::vector<Prompt>& prompts() const { return prompts_; }
  const PromptSurvey& survey() const { return survey_; }

 private:
  const GenerateOptions* options_;
  PromptWriter writer_;
  PromptLimits limits_;
  GenerateSettings settings_;
  std::vector<Prompt> prompts_;
  PromptSurvey survey_;  // of --in
};

// Speaker answers with one model; the arguments must outlive it.
class Speaker {
 public:
  Speaker(const LoadedRun* run, const GenerateOptions* options, const Request* request)
      : run_(run),
        options_(options),
        request_(request),
        generator_(run->engine.get(), &run->setup.source->model(), &request->writer().tokenizer()) {
    log_info("weights of " + describe_origin(*run_, options_->source));
  }

  // Answers the rows of --in.
  void answer_file() {
    const RunConfig& config = run_->setup.config;
    const FileGeneration generation{
        .in = options_->in,
        .out = options_->out,
        .system = options_->system,
        .settings = request_->settings(),
        .origin = {{"model", run_->origin},
                   {"step", run_->step.value},
                   {"architecture", run_->setup.source->fingerprint()},
                   {"compute", std::string(name_of(config.precision.compute))},
                   {"chat", options_->chat}}};
    generation.run(generator_, request_->writer(), request_->survey());
  }

  // Answers all prompts. The text of each appears while it grows, one answer after another.
  void answer_prompts() {
    for (const Answer& answer : show(request_->prompts())) require_finite(*run_, answer);
  }

  // Answers lines of standard input as one conversation until the input ends. Returns the exit
  // code: that of a line that could not be answered, unless someone at a terminal saw it.
  int converse() {
    int code = 0;
    const bool terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
    if (terminal) log_info("/reset begins a new conversation; /exit or the end of input ends");
    Json messages = request_->opening();
    for (std::string line; next_line(terminal, line);) {
      if (line == "/exit") break;
      if (line == "/reset") messages = request_->opening();
      if (line.find_first_not_of(" \t\r") == std::string::npos || line == "/reset") continue;
      Json asked = Request::asking(messages, line);
      try {
        const Prompt prompt = request_->writer().write_messages(asked);
        request_->check(prompt);
        const Answer answer = show({prompt}).front();
        require_finite(*run_, answer);
        asked.push_back({{"role", "assistant"}, {"content", answer.text}});
        messages = std::move(asked);
      } catch (const ConfigError& error) {
        log_error(std::string(error.what()) +
                  "; the conversation goes on without this line (/reset begins a new one)");
        if (!terminal) code = static_cast<int>(error.exit_code());
      }
    }
    return code;
  }

 private:
  static bool next_line(bool terminal, std::string& line) {
    if (terminal) std::cerr << "> " << std::flush;
    return static_cast<bool>(std::getline(std::cin, line));
  }

  // Generates answers to the prompts and prints each while it grows, in order. Later ones that grow
  // at the same time wait for their turn.
  std::vector<Answer> show(const std::vector<Prompt>& prompts) {
    GenerateSettings settings = request_->settings();
    const bool texts = !options_->json;
    std::map<int64_t, std::string> waiting;
    int64_t turn = 0;
    if (texts) {
      settings.on_text = [&](int64_t number, const std::string& piece) {
        waiting[number] += piece;
        if (number != turn) return;
        print_piece(prompts, number, waiting.extract(number).mapped());
      };
    }
    std::vector<Answer> answers;
    size_t next = 0;
    generator_.run(
        settings,
        [&]() -> std::optional<Prompt> {
          return next < prompts.size() ? std::optional(prompts[next++]) : std::nullopt;
        },
        [&](int64_t number, Answer answer) {
          if (texts) {
            print_piece(prompts, number, waiting[number] + answer.rest);
            print_out(options_->chat ? "\n" : "\n\n");
          } else {
            print_result(prompts, number, answer);
          }
          flush_output();
          say_if_cut(answer);
          begun_ = false;
          turn = number + 1;
          answers.push_back(std::move(answer));
        });
    return answers;
  }

  // Prints text of an answer; before its first piece the prompt that it continues.
  void print_piece(const std::vector<Prompt>& prompts, int64_t number, const std::string& piece) {
    if (!begun_ && !options_->chat) print_out("%s", prompt_of(prompts, number).text.c_str());
    begun_ = true;
    print_out("%s", piece.c_str());
    flush_output();
  }

  void print_result(const std::vector<Prompt>& prompts, int64_t number, const Answer& answer) {
    Json line = {{"model", run_->origin},
                 {"step", run_->step.value},
                 {"prompt", prompt_of(prompts, number).text},
                 {"sample", number % options_->samples},
                 {"text", answer.text},
                 {"new_tokens", answer.new_tokens},
                 {"ended", answer.ended()},
                 {"finish", name_of(answer.finish)}};
    if (options_->logprobs) line["logprobs"] = logprobs_of(answer);
    print_json_line(line);
  }

  const Prompt& prompt_of(const std::vector<Prompt>& prompts, int64_t number) const {
    return prompts.at(static_cast<size_t>(number / options_->samples));
  }

  void say_if_cut(const Answer& answer) const {
    if (!options_->chat || answer.finish != Finish::kLength) return;
    log_warning("the answer is cut after " + std::to_string(answer.new_tokens) +
                " tokens (--max-new-tokens)");
  }

  const LoadedRun* run_;
  const GenerateOptions* options_;
  const Request* request_;
  Generator generator_;
  bool begun_ = false;  // the answer whose turn it is has printed text
};

// Throws ConfigError for options that do not belong together.
void check_options(const GenerateOptions& options) {
  std::vector<std::string> problems;
  const bool talk = options.chat && options.prompts.empty() && !options.of_file();
  if (!options.chat && options.prompts.empty() && !options.of_file()) {
    problems.push_back(
        "generate: give a text with --prompt, a file with --in and --out, or --chat for a "
        "conversation");
  }
  if (options.in.empty() != options.out.empty()) {
    problems.push_back(
        "generate: --in names the file of prompts and --out that of their answers; "
        "give both");
  }
  if (options.of_file() && !options.prompts.empty()) {
    problems.push_back("generate: --prompt and --in exclude each other");
  }
  if (options.of_file() && options.json) {
    problems.push_back("generate: --out has JSON already; leave out --json");
  }
  if (options.logprobs && !options.json && !options.of_file()) {
    problems.push_back(
        "generate: --logprobs are written as JSON; add --json, or use --in and "
        "--out");
  }
  if (talk && options.samples > 1) {
    problems.push_back(
        "generate: a conversation goes on with one answer; give --samples with "
        "--prompt or --in");
  }
  for (const std::string& text : options.stop) {
    if (text.empty()) problems.push_back("generate: --stop needs a text");
    if (first_invalid_utf8(text)) problems.push_back("generate: --stop: the text is not UTF-8");
  }
  if (options.of_file() && !options.in.empty() && !options.out.empty() &&
      is_same_file(options.in, options.out)) {
    problems.push_back("generate: --out " + options.out +
                       " is the file of --in, which answers would overwrite");
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

int run_generate(const GenerateOptions& options) {
  check_options(options);
  std::optional<Request> request;
  const LoadedRun run = load_run(options.run, options.source, {}, [&](const MeasuredRun& setup) {
    return request.emplace(&options, setup).needs();
  });
  Speaker speaker(&run, &options, &*request);
  if (options.of_file()) {
    speaker.answer_file();
  } else if (options.prompts.empty()) {
    return speaker.converse();
  } else {
    speaker.answer_prompts();
  }
  return 0;
}

void add_sampling(CommandArguments command, GenerateOptions& options) {
  command.add_number("--max-new-tokens", options.max_new_tokens, 1, kMostTokens,
                     "maximum number of tokens to generate per prompt");
  command.add_number("--samples", options.samples, 1, kMostSamples,
                     "answers to each prompt, each with its own random numbers");
  command.add_number("--sequences", options.sequences, 1, kMostSequences,
                     "most answers that grow at the same time; fewer where their states do not "
                     "fit. The answers are the same with any number");
  command.add_number("--temperature", options.temperature, 0.0, 1000.0,
                     "sampling temperature; 0: greedy");
  command.add_number("--top-k", options.top_k, 0, kMostTokens,
                     "sample from this number of the most likely tokens; 0: from all");
  command.add_number("--top-p", options.top_p, 1e-6, 1.0,
                     "sample from the most likely tokens of this total probability; 1: from all");
  command.add_number("--min-p", options.min_p, 0.0, 1.0,
                     "sample from tokens of at least this part of the most likely one's "
                     "probability; 0: from all");
  command
      .add_option("--stop", options.stop,
                  "text before which an answer ends; may be repeated, and may begin and end within "
                  "tokens")
      .one_value_each();
}

void add_generate(CommandArguments command, CommandLine& line) {
  GenerateOptions& options = call_with_options(command, line, run_generate);
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  command
      .add_option("--prompt", options.prompts,
                  "prompt; may be repeated. With --chat each begins a new conversation")
      .one_value_each();
  command.add_option("--in", options.in,
                     "file with a prompt in each row: {\"prompt\": TEXT}, or {\"messages\": "
                     "[...]} with --chat; the answers go to --out");
  command.add_option("--out", options.out,
                     "file for the answers to --in, a line for each; the same command goes on with "
                     "a file that was interrupted");
  const CommandOption chat =
      command.add_flag("--chat", options.chat,
                       "answer as in a conversation, by the chat template: the prompts, or without "
                       "--prompt the lines of standard input (/reset, /exit)");
  command.add_option("--system", options.system, "system message of the conversation").needs(chat);
  add_source(command, options.source);
  add_sampling(command, options);
  command.add_flag("--logprobs", options.logprobs,
                   "with --json or --out: each token of an answer with its log-probability");
  command.add_flag("--json", options.json, "print one JSON object per answer and line");
}

}  // namespace

extern const Command kGenerateCommand = {.group = CommandGroup::kUse,
                                         .name = "generate",
                                         .description = "generate text from prompts, or chat",
                                         .add = add_generate};

}  // namespace longshore
