// The `generate` command continues prompts, or answers them as a chat.
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/commands/command.h"
#include "trainer/use/generator.h"
#include "trainer/use/loaded_run.h"
#include "trainer/use/prompt_writer.h"

namespace longshore {
namespace {

struct GenerateOptions {
  RunArguments run;
  std::vector<std::string> prompts;
  std::string source = "auto";
  std::string system;  // message of the chat; empty: none
  bool chat = false;
  int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1.0;        // 1: all tokens
  bool json = false;
};

// A directory that --from names may hold any model, so the output does not mention its training.
std::string describe_origin(const LoadedRun& run, const std::string& source) {
  if (run.step.value > 0) return run.origin + ", step " + std::to_string(run.step.value);
  const bool own = source == "auto" || source == "model";
  return run.origin + (own ? ", as it was before training" : "");
}

void require_finite(const LoadedRun& run, const Generated& result) {
  if (!result.nonfinite) return;
  throw NonFiniteError(run.origin +
                       ": the model's scores are not finite; its weights hold NaN "
                       "or infinite values, or overflow");
}

void print_result(const LoadedRun& run, const Generated& result) {
  print_json_line({{"model", run.origin},
                   {"step", run.step.value},
                   {"prompt", result.prompt},
                   {"text", result.text},
                   {"new_tokens", result.new_tokens},
                   {"ended", result.ended}});
}

// Speaker generates with one model; the arguments must outlive it.
class Speaker {
 public:
  Speaker(const LoadedRun* run, const GenerateOptions* options)
      : run_(run),
        options_(options),
        writer_(run->setup.config, run->setup.source->directory(),
                options->chat ? PromptWriter::Form::kMessages : PromptWriter::Form::kText,
                "--chat") {}

  void continue_prompts() const {
    GenerateRequest request = new_request();
    for (const std::string& prompt : options_->prompts) {
      request.prompts.push_back(writer_.write(prompt));
    }
    const std::vector<Generated> results = generate(*run_->engine, writer_.tokenizer(), request);
    log_info("weights of " + describe_origin(*run_, options_->source));
    for (const Generated& result : results) {
      if (options_->json) {
        print_result(*run_, result);
      } else {
        print_out("%s%s\n\n", result.prompt.c_str(), result.text.c_str());
      }
    }
    for (const Generated& result : results) require_finite(*run_, result);
  }

  // Answers each prompt in its own conversation.
  void answer_prompts() const {
    log_info("weights of " + describe_origin(*run_, options_->source));
    for (const std::string& prompt : options_->prompts) answer(asking(opening(), prompt));
  }

  // Answers lines of standard input as one conversation until the input ends. Returns the exit
  // code: that of a line that could not be answered, unless someone at a terminal saw it.
  int converse() const {
    int code = 0;
    const bool terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
    log_info("weights of " + describe_origin(*run_, options_->source));
    if (terminal) log_info("/reset begins a new conversation; /exit or the end of input ends");
    Json messages = opening();
    for (std::string line; next_line(terminal, line);) {
      if (line == "/exit") break;
      if (line == "/reset") messages = opening();
      if (line.find_first_not_of(" \t\r") == std::string::npos || line == "/reset") continue;
      Json asked = asking(messages, line);
      try {
        const std::string text = answer(asked);
        asked.push_back({{"role", "assistant"}, {"content", text}});
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
  GenerateRequest new_request() const {
    const RunConfig& config = run_->setup.config;
    return {.prompts = {},
            .stops = writer_.stops(),
            .max_new_tokens = options_->max_new_tokens,
            .longest = config.data.max_tokens,
            .sampling = {.temperature = options_->temperature,
                         .top_k = options_->top_k,
                         .top_p = options_->top_p,
                         .seed = static_cast<uint64_t>(config.run.seed)}};
  }

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

  static bool next_line(bool terminal, std::string& line) {
    if (terminal) std::cerr << "> " << std::flush;
    return static_cast<bool>(std::getline(std::cin, line));
  }

  // Prints the answer to the conversation while it grows, and returns it.
  std::string answer(const Json& messages) const {
    GenerateRequest request = new_request();
    request.prompts = {writer_.write_messages(messages)};
    TextStream stream(&writer_.tokenizer());
    if (!options_->json) {
      request.on_token = [&stream](size_t, std::span<const TokenId> added) {
        print_out("%s", stream.take(added).c_str());
        flush_output();
      };
    }
    Generated result = generate(*run_->engine, writer_.tokenizer(), request).front();
    if (options_->json) {
      print_result(*run_, result);
    } else {
      print_out("%s\n", stream.rest(result.text).c_str());
    }
    flush_output();
    require_finite(*run_, result);
    if (!result.ended) {
      log_warning("the answer is cut after " + std::to_string(result.new_tokens) +
                  " tokens (--max-new-tokens)");
    }
    return std::move(result.text);
  }

  const LoadedRun* run_;
  const GenerateOptions* options_;
  PromptWriter writer_;
};

int run_generate(const GenerateOptions& options) {
  if (!options.chat && options.prompts.empty()) {
    throw ConfigError("generate: give a text with --prompt, or --chat for a conversation");
  }
  const LoadedRun run = load_run(options.run, options.source);
  const Speaker speaker(&run, &options);
  if (!options.chat) {
    speaker.continue_prompts();
  } else if (options.prompts.empty()) {
    return speaker.converse();
  } else {
    speaker.answer_prompts();
  }
  return 0;
}

void add_generate(CommandArguments command, CommandLine& line) {
  GenerateOptions& options = call_with_options(command, line, run_generate);
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  command
      .add_option("--prompt", options.prompts,
                  "prompt; may be repeated. With --chat each begins a new conversation")
      .one_value_each();
  const CommandOption chat =
      command.add_flag("--chat", options.chat,
                       "answer as in a conversation, by the chat template: the prompts, or without "
                       "--prompt the lines of standard input (/reset, /exit)");
  command.add_option("--system", options.system, "system message of the conversation").needs(chat);
  add_source(command, options.source);
  command.add_number("--max-new-tokens", options.max_new_tokens, 1, kMostTokens,
                     "maximum number of tokens to generate per prompt");
  command.add_number("--temperature", options.temperature, 0.0, 1000.0,
                     "sampling temperature; 0: greedy");
  command.add_number("--top-k", options.top_k, 0, kMostTokens,
                     "sample from this number of the most likely tokens; 0: from all");
  command.add_number("--top-p", options.top_p, 1e-6, 1.0,
                     "sample from the most likely tokens of this total probability; 1: from all");
  command.add_flag("--json", options.json, "print one JSON object per prompt and line");
}

}  // namespace

extern const Command kGenerateCommand = {.group = CommandGroup::kUse,
                                         .name = "generate",
                                         .description = "generate text from prompts, or chat",
                                         .add = add_generate};

}  // namespace longshore
