// The table's rows for training and evaluation data.
#include "config/field_rows.h"

namespace longshore {
namespace {

// Adds the keys of prompt and chat templates.
void add_template_keys(Rows<DataSection>& rows) {
  using Data = DataSection;
  rows.add(
      "prompt_template", KeyType::kString, &Data::prompt_template,
      {.description = "template of the text before a completion: \"plain\" (the prompt, a blank "
                      "line and the context), \"alpaca\", \"chat\" (prompt and completion are "
                      "messages, which the chat template writes), or a text with {prompt} and "
                      "{context}; \"auto\": for rows with an instruction chat if there is a chat "
                      "template, alpaca if not; else plain"});
  rows.add(
      "chat_template", KeyType::kPath, &Data::chat_template,
      {.description =
           "Jinja file with the chat template; \"auto\": the template of the model directory; "
           "\"training\": a built-in template for Qwen3, DeepSeek R1 distills, gpt-oss and Llama 3 "
           "that trains all answers of a conversation in one sample"});
  rows.add(
      "template_arguments", KeyType::kTable, &Data::template_arguments,
      {.description = "additional variables of the chat template: { enable_thinking = false }"});
  rows.add(
      "date", KeyType::kString, &Data::date,
      {.description = "date for chat templates that print the current date; it is fixed, so that "
                      "the same data gives the same tokens"});
}

// Adds the keys that say what a row is and which of its tokens are trained.
void add_format_keys(Rows<DataSection>& rows) {
  using Data = DataSection;
  rows.choice<Data::Format>(
      "format", &Data::format,
      {{"auto", Data::Format::kAuto},
       {"text", Data::Format::kText},
       {"tokens", Data::Format::kTokens},
       {"prompt-completion", Data::Format::kPromptCompletion},
       {"messages", Data::Format::kMessages},
       {"preference", Data::Format::kPreference},
       {"unpaired-preference", Data::Format::kUnpaired},
       {"policy", Data::Format::kPolicy},
       {"distill", Data::Format::kDistill}},
      {.description =
           "row format. text: a .txt file is one document, a JSONL row is {\"text\": ...}; tokens: "
           "rows {\"input_ids\": [...], \"labels\": [...]}; prompt-completion: rows {\"prompt\": "
           "..., \"completion\": ...} or Alpaca rows; messages: conversations in the OpenAI or "
           "ShareGPT format; preference: rows {\"prompt\": ..., \"chosen\": ..., \"rejected\": "
           "...}; unpaired-preference: rows {\"prompt\": ..., \"completion\": ..., \"label\": "
           "true}; policy: rows of tokens with \"old_logps\" and \"advantage\"; distill: rows of "
           "tokens with \"teacher_ids\" and \"teacher_logps\"; auto: detected from the first row "
           "of each file. Files may be compressed with "
           "gzip or zstd"});
  rows.choice<Data::Mask>(
      "mask", &Data::mask,
      {{"auto", Data::Mask::kAuto},
       {"assistant", Data::Mask::kAssistant},
       {"completion", Data::Mask::kCompletion},
       {"last", Data::Mask::kLast},
       {"all", Data::Mask::kAll}},
      {.description =
           "tokens that count in the loss. auto: answers of conversations, completions, all tokens "
           "of plain text. For conversations: assistant: all answers; completion: the answers "
           "after the last question; last: the last answer; all: every token"});
}

// Adds the keys that say how often files are read.
void add_mix_keys(Rows<DataSection>& rows) {
  using Data = DataSection;
  rows.add(
      "weights", KeyType::kReals, &Data::weights,
      {.description = "how often each entry of data.train is read per epoch: 2.0: twice; 0.5: half "
                      "of its documents; empty: once each",
       .bounds = between(0, 1000)});
  rows.choice<Data::Mix>(
      "mix", &Data::mix,
      {{"concat", Data::Mix::kConcat},
       {"exhaust", Data::Mix::kExhaust},
       {"restart", Data::Mix::kRestart}},
      {.description =
           "rows of an epoch. concat: those of all files, each as often as data.weights says; "
           "exhaust and restart: of each entry of data.train its share by data.probabilities. "
           "exhaust: the epoch ends when one entry has been read, and none is read twice; "
           "restart: entries that end begin again until all have been read"});
  rows.add("probabilities", KeyType::kReals, &Data::probabilities,
           {.description = "with data.mix, the share of rows of each entry of data.train in an "
                           "epoch: [0.7, 0.3]; their sum is 1; empty: equal shares",
            .bounds = {.min = 0, .max = 1, .min_excluded = true}});
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
      {.description = "action for a document longer than data.max_tokens: error: end the run; "
                      "truncate: keep its first tokens; drop: leave it out and count it; split: "
                      "cut it into several documents, which is refused for judged answers"});
  rows.choice<Data::BadRows>(
      "bad_rows", &Data::bad_rows,
      {{"error", Data::BadRows::kError}, {"skip", Data::BadRows::kSkip}},
      {.description = "action for a row that cannot be used: error: end the run; skip: leave the "
                      "row out and count it"});
  rows.choice<Data::SpecialTokens>(
      "special_tokens", &Data::special_tokens,
      {{"keep", Data::SpecialTokens::kKeep},
       {"text", Data::SpecialTokens::kText},
       {"error", Data::SpecialTokens::kError}},
      {.description = "special tokens that a row's own text spells, such as </s> in a "
                      "message: keep: they are the tokens; text: ordinary text; error: the row is "
                      "a bad row"});
  rows.add("add_eos", KeyType::kBool, &Data::add_eos,
           {.description = "append the end-of-sequence token to every text and every completion"});
  rows.add("cache", KeyType::kPath, &Data::cache,
           {.description = "directory of prepared data, shared by all runs; \"auto\": longshore in "
                           "XDG_CACHE_HOME or ~/.cache"});
  rows.add(
      "cache_limit", KeyType::kBytes, &Data::cache_limit,
      {.description = "size limit of data.cache; above it, preparing new data removes the least "
                      "recently used data that no run has open",
       .bounds = at_least(0)});
  rows.add("threads", KeyType::kInteger, &Data::threads,
           {.description = "threads that prepare data; the result does not depend on their number",
            .bounds = between(1, 1024),
            .unit = "threads"});
}

}  // namespace

Section data_section() {
  using Data = DataSection;
  Section section{"data", "training and evaluation data", {}};
  Rows rows(&section, &RunConfig::data);
  rows.add("train", KeyType::kPaths, &Data::train,
           {.description = "training files, or hub ids of data sets in the local Hugging Face "
                           "cache: owner/name, owner/name:split or owner/name:config:split",
            .example = "[\"train.jsonl\"]"});
  rows.add("eval", KeyType::kPaths, &Data::eval,
           {.description = "evaluation files, or hub ids as in data.train"});
  add_format_keys(rows);
  add_mix_keys(rows);
  rows.add(
      "max_rows", KeyType::kInteger, &Data::max_rows,
      {.description = "number of rows that are read of each data file, of data.eval and "
                      "eval.sets too: the first ones, in the file's order; 0: all; a .txt file "
                      "is one row",
       .bounds = between(0, 1e12),
       .unit = "rows"});
  rows.add(
      "keys", KeyType::kTable, &Data::keys,
      {.description =
           "field names of a row where they differ from text, prompt, context, "
           "completion, system, history, messages, tools, input_ids, labels, chosen, rejected, "
           "label, weight, weights, advantage, advantages, old_logps, teacher_ids, "
           "teacher_logps: { prompt = \"question\" }"});
  add_template_keys(rows);
  rows.add("max_tokens", KeyType::kInteger, &Data::max_tokens,
           {.description = "maximum number of tokens in a sequence",
            .bounds = between(2, 1 << 24),
            .unit = "tokens"});
  rows.add("packing", KeyType::kBool, &Data::packing,
           {.description =
                "pack several documents into one sequence; attention does not cross documents"});
  rows.add("shuffle", KeyType::kBool, &Data::shuffle,
           {.description = "use a new random order in every epoch; false: the order of the files"});
  add_upkeep_keys(rows);
  return section;
}

Section tokenizer_section() {
  Section section{"tokenizer", "the tokenizer", {}};
  Rows rows(&section, &RunConfig::tokenizer);
  rows.add("path", KeyType::kPath, &TokenizerSection::path,
           {.description = "directory with tokenizer.json, its configuration and the chat "
                           "template; \"auto\": model.path"});
  rows.add("add_tokens", KeyType::kStrings, &TokenizerSection::add_tokens,
           {.description =
                "tokens that the run adds to the tokenizer: a text that spells one becomes this "
                "one token. New ones get the ids behind the last; if the model has too few rows, "
                "its embedding and head get more, which begin as the mean of the others. Tokens "
                "that the tokenizer has keep their ids"});
  rows.add("add_special_tokens", KeyType::kStrings, &TokenizerSection::add_special_tokens,
           {.description = "the same for special tokens, such as marks of turns: they can end a "
                           "text, and decoded texts leave them out; their ids are behind those of "
                           "tokenizer.add_tokens"});
  return section;
}

Section eval_section() {
  Section section{"eval", "evaluation loss and sample texts", {}};
  Rows rows(&section, &RunConfig::eval);
  rows.add("sets", KeyType::kTable, &EvalSection::sets,
           {.description = "named evaluation sets, each a file or hub id or a list of them, as in "
                           "data.eval: { math = \"math.jsonl\", code = [\"a.jsonl\", "
                           "\"b.jsonl\"] }; each gets its own loss"});
  rows.add("every_steps", KeyType::kInteger, &EvalSection::every_steps,
           {.description = "steps between evaluations; 0: only at the end",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("sequences", KeyType::kInteger, &EvalSection::sequences,
           {.description = "maximum number of sequences per evaluation; 0: all",
            .bounds = between(0, kMaxSteps),
            .unit = "sequences"});
  rows.add(
      "split", KeyType::kReal, &EvalSection::split,
      {.description = "fraction of the documents of data.train that is held out for evaluation, "
                      "chosen with run.seed; 0: none",
       .bounds = {.min = 0, .max = 1, .max_excluded = true}});
  rows.add(
      "keep_best", KeyType::kBool, &EvalSection::keep_best,
      {.description = "keep a checkpoint of the lowest evaluation loss so far in <run.dir>/best"});
  rows.add("patience", KeyType::kInteger, &EvalSection::patience,
           {.description = "early stopping: end the run after this number of evaluations in a row "
                           "without a lower loss; 0: never",
            .bounds = between(0, kMaxSteps),
            .unit = "evaluations"});
  rows.add("prompts", KeyType::kStrings, &EvalSection::prompts,
           {.description = "prompts that the model continues at every evaluation"});
  rows.choice<EvalSection::PromptFormat>(
      "prompt_format", &EvalSection::prompt_format,
      {{"auto", EvalSection::PromptFormat::kAuto},
       {"text", EvalSection::PromptFormat::kText},
       {"messages", EvalSection::PromptFormat::kMessages}},
      {.description = "form of eval.prompts: texts, or the user's messages of conversations, which "
                      "the chat template writes; auto: messages if a training file has "
                      "conversations, else text"});
  rows.add("max_new_tokens", KeyType::kInteger, &EvalSection::max_new_tokens,
           {.description = "maximum number of tokens added to each of eval.prompts",
            .bounds = between(1, 1 << 16),
            .unit = "tokens"});
  return section;
}

}  // namespace longshore
