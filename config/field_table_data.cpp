// The table's rows for training and evaluation data.
#include "config/field_rows.h"

namespace longshore {
namespace {

// Adds the keys of prompt and chat templates.
void add_template_keys(Rows<DataSection>& rows) {
  using Data = DataSection;
  rows.add(
      "prompt_template", KeyType::kString, &Data::prompt_template,
      {.description = "what stands before a completion: \"plain\" (the prompt, a blank line and "
                      "the context), \"alpaca\", or a text with {prompt} and {context}; "
                      "\"auto\": alpaca for rows with an instruction, else plain"});
  rows.add(
      "chat_template", KeyType::kPath, &Data::chat_template,
      {.description = "a Jinja file that writes conversations; \"auto\": the model directory's; "
                      "\"training\": one in its place that trains all answers in one sample, for "
                      "Qwen3, DeepSeek R1 distills, gpt-oss and Llama 3"});
  rows.add("template_arguments", KeyType::kTable, &Data::template_arguments,
           {.description = "more values for the chat template: { enable_thinking = false }"});
  rows.add(
      "date", KeyType::kString, &Data::date,
      {.description = "the day that a chat template prints where it asks for today's: fixed, so "
                      "that the same data gives the same tokens"});
}

// Adds the keys for rows that do not fit and for the cache.
void add_upkeep_keys(Rows<DataSection>& rows) {
  using Data = DataSection;
  rows.choice<Data::Overlength>(
      "overlength", &Data::overlength,
      {{"error", Data::Overlength::kError},
       {"truncate", Data::Overlength::kTruncate},
       {"drop", Data::Overlength::kDrop},
       {"split", Data::Overlength::kSplit}},
      {.description = "what happens to a document longer than data.max_tokens"});
  rows.choice<Data::BadRows>(
      "bad_rows", &Data::bad_rows,
      {{"error", Data::BadRows::kError}, {"skip", Data::BadRows::kSkip}},
      {.description = "a row that cannot be used ends the run, or is left out and counted"});
  rows.add("add_eos", KeyType::kBool, &Data::add_eos,
           {.description = "end every text and every completion with the end-of-sequence token"});
  rows.add("cache", KeyType::kPath, &Data::cache,
           {.description = "directory of prepared data, shared by runs; \"auto\": longshore in "
                           "XDG_CACHE_HOME or ~/.cache"});
  rows.add(
      "cache_limit", KeyType::kBytes, &Data::cache_limit,
      {.description = "what is in data.cache beyond it, and not in use, goes when new data was "
                      "prepared, least recently used first",
       .bounds = at_least(0)});
  rows.add("threads", KeyType::kInteger, &Data::threads,
           {.description = "threads that prepare data; the result does not depend on them",
            .bounds = between(1, 1024),
            .unit = "threads"});
}

}  // namespace

Section data_section() {
  using Data = DataSection;
  Section section{"data", "what is trained on", {}};
  Rows rows(&section, &RunConfig::data);
  rows.add("train", KeyType::kPaths, &Data::train,
           {.description =
                "files to train on, or hub ids of data sets that are in the local Hugging Face "
                "cache: owner/name, owner/name:split or owner/name:config:split",
            .example = "[\"train.jsonl\"]"});
  rows.add("eval", KeyType::kPaths, &Data::eval,
           {.description = "files to evaluate on, or hub ids as above"});
  rows.choice<Data::Format>(
      "format", &Data::format,
      {{"auto", Data::Format::kAuto},
       {"text", Data::Format::kText},
       {"tokens", Data::Format::kTokens},
       {"prompt-completion", Data::Format::kPromptCompletion},
       {"messages", Data::Format::kMessages}},
      {.description =
           "text: a .txt file is one document, or JSONL rows {\"text\": ...}; tokens: rows "
           "{\"input_ids\": [...], \"labels\": [...]}; prompt-completion: rows {\"prompt\": ..., "
           "\"completion\": ...} or Alpaca's; messages: conversations as OpenAI or ShareGPT write "
           "them; auto: by each file's first row. Files may be compressed with gzip or zstd"});
  rows.choice<Data::Mask>(
      "mask", &Data::mask,
      {{"auto", Data::Mask::kAuto},
       {"assistant", Data::Mask::kAssistant},
       {"completion", Data::Mask::kCompletion},
       {"last", Data::Mask::kLast},
       {"all", Data::Mask::kAll}},
      {.description =
           "what is trained. auto: answers of conversations, completions, all of plain text. Of a "
           "conversation: assistant: all answers; completion: those after the last question; "
           "last: the last one; all: every token"});
  rows.add(
      "weights", KeyType::kReals, &Data::weights,
      {.description = "for each entry of data.train how often it is read in an epoch: 2.0 twice, "
                      "0.5 half of its documents; empty: once each",
       .bounds = between(0, 1000)});
  rows.add(
      "keys", KeyType::kTable, &Data::keys,
      {.description = "names of a row's members where they differ from text, prompt, context, "
                      "completion, messages, tools, input_ids, labels: { prompt = \"question\" }"});
  add_template_keys(rows);
  rows.add("max_tokens", KeyType::kInteger, &Data::max_tokens,
           {.description = "tokens in a sequence at most",
            .bounds = between(2, 1 << 24),
            .unit = "tokens"});
  rows.add("packing", KeyType::kBool, &Data::packing,
           {.description = "put several documents into one sequence; none sees another"});
  rows.add("shuffle", KeyType::kBool, &Data::shuffle,
           {.description = "a new random order every epoch; false: the order of the files"});
  add_upkeep_keys(rows);
  return section;
}

Section tokenizer_section() {
  Section section{"tokenizer", "text to tokens", {}};
  Rows rows(&section, &RunConfig::tokenizer);
  rows.add("path", KeyType::kPath, &TokenizerSection::path,
           {.description = "directory of tokenizer.json, its configuration and chat template; "
                           "\"auto\": model.path"});
  return section;
}

Section eval_section() {
  Section section{"eval", "loss on held-out data, and samples", {}};
  Rows rows(&section, &RunConfig::eval);
  rows.add("every_steps", KeyType::kInteger, &EvalSection::every_steps,
           {.description = "steps between evaluations; 0: only at the end",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("sequences", KeyType::kInteger, &EvalSection::sequences,
           {.description = "sequences per evaluation at most; 0: all",
            .bounds = between(0, kMaxSteps),
            .unit = "sequences"});
  rows.add(
      "split", KeyType::kReal, &EvalSection::split,
      {.description = "fraction of data.train's documents that is evaluated on and not trained, "
                      "chosen by run.seed; 0: none",
       .bounds = {.min = 0, .max = 1, .max_excluded = true}});
  rows.add("keep_best", KeyType::kBool, &EvalSection::keep_best,
           {.description = "keep a checkpoint of the lowest loss so far in best of run.dir"});
  rows.add(
      "patience", KeyType::kInteger, &EvalSection::patience,
      {.description = "end the run after so many evaluations in a row without a lower loss; 0: "
                      "never",
       .bounds = between(0, kMaxSteps),
       .unit = "evaluations"});
  rows.add("prompts", KeyType::kStrings, &EvalSection::prompts,
           {.description = "texts that the model continues at every evaluation"});
  rows.add("max_new_tokens", KeyType::kInteger, &EvalSection::max_new_tokens,
           {.description = "tokens added to each of eval.prompts at most",
            .bounds = between(1, 1 << 16),
            .unit = "tokens"});
  return section;
}

}  // namespace longshore
