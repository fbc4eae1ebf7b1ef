// Rows with pairs of answers: what each side trains, the errors for other rows, and that a pair is
// one sample in cutting, packing, holding out and batches.
#include <algorithm>
#include <fstream>
#include <map>

#include "base/file.h"
#include "data/rows/row_format.h"
#include "data/tokens/batch.h"
#include "tests/data/prepare_fixture.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

class Pairs : public PrepareFixture {
 protected:
  Pairs() { options_.data.max_tokens = 4096; }

  // Returns the scored texts of the first pair, chosen first. The whole texts begin alike.
  std::vector<std::string> scored(const std::string& row) {
    const LoadedData data = load(row);
    EXPECT_EQ(data.report.files[0].format, "preference");
    EXPECT_EQ(data.dataset->document_count(), 2);
    EXPECT_FALSE(data.dataset->row_goes_on(0));
    EXPECT_TRUE(data.dataset->row_goes_on(1));
    for (int64_t side = 0; side < 2; ++side) {
      const std::string whole = text_of(tokens_of(data, side)), answer = learned(data, side);
      const size_t at = whole.rfind(answer);
      EXPECT_NE(at, std::string::npos) << whole;
      prompts_[side] = whole.substr(0, at);
    }
    EXPECT_EQ(prompts_[0], prompts_[1]);
    return {learned(data, 0), learned(data, 1)};
  }

  std::string prompts_[2];  // of the last pair
};

using Texts = std::vector<std::string>;

std::string message(const std::string& role, const std::string& content) {
  return "{\"role\": \"" + role + "\", \"content\": \"" + content + "\"}";
}
const std::string kQuestion = message("user", "q");
const std::string kGood = message("assistant", "a");
const std::string kBad = message("assistant", "b");

std::string conversations(const std::string& prompt, const std::string& more = "") {
  return "{\"chosen\": [" + prompt + kGood + "], \"rejected\": [" + prompt + kBad + "]" + more +
         "}";
}

// Texts are scored behind their prompt, with eos; an eos that is there stays one.
TEST_F(Pairs, TextsAreScoredBehindTheirPrompt) {
  EXPECT_EQ(scored(R"({"prompt": "sky", "chosen": " blue", "rejected": " red</s>"})"),
            (Texts{" blue</s>", " red</s>"}));
  EXPECT_EQ(prompts_[0], "sky");
  options_.data.add_eos = false;
  EXPECT_EQ(scored(R"({"prompt": "sky", "chosen": " blue", "rejected": " red</s>"})"),
            (Texts{" blue", " red</s>"}));
}

// The common beginning of two texts is the prompt; a space before the fork and the bytes of a
// character that differs go to the answers.
TEST_F(Pairs, TheCommonBeginningOfTextsIsThePrompt) {
  EXPECT_EQ(scored(R"({"chosen": "\n\nHuman: q\n\nAssistant: yes", "rejected": )"
                   R"("\n\nHuman: q\n\nAssistant: no"})"),
            (Texts{" yes</s>", " no</s>"}));
  EXPECT_EQ(prompts_[0], "\n\nHuman: q\n\nAssistant:");
  EXPECT_EQ(scored(R"({"chosen": "q:é", "rejected": "q:è"})"), (Texts{"é</s>", "è</s>"}));
}

// A prompt in text is written by data.prompt_template, as Alpaca's names ask for without one: by
// the chat template, or as Alpaca's text where there is none.
TEST_F(Pairs, TextsOfPromptsFollowTheirTemplate) {
  options_.data.prompt_template = "<{prompt}|{context}>";
  EXPECT_EQ(scored(R"({"prompt": "q", "context": "c", "chosen": "a", "rejected": "b"})"),
            (Texts{"a</s>", "b</s>"}));
  EXPECT_EQ(prompts_[0], "<q|c>");
  options_.data.prompt_template = "auto";
  const std::string instruction =
      R"({"instruction": "q", "input": "c", "chosen": "a", "rejected": "b"})";
  EXPECT_EQ(scored(instruction), (Texts{"a</s>", "b</s>"}));
  EXPECT_EQ(prompts_[0].find("### Instruction"), std::string::npos);
  options_.chat = nullptr;
  EXPECT_EQ(scored(instruction), (Texts{"a</s>", "b</s>"}));
  EXPECT_NE(prompts_[0].find("### Instruction:\nq\n\n### Input:\nc\n\n### Response:\n"),
            std::string::npos);
}

// Messages are scored as the template writes the answer behind the prompt, whether the prompt is a
// list, the common beginning, a text beside whole conversations, or in ShareGPT's columns.
TEST_F(Pairs, MessagesOfEveryShapeScoreTheSame) {
  const Texts expected = {"a</s>", "b</s>"};
  const std::string led = message("system", "s") + "," + kQuestion;
  for (const std::string& row :
       {"{\"prompt\": [" + led + "], \"chosen\": [" + kGood + "], \"rejected\": [" + kBad + "]}",
        "{\"prompt\": [" + led + "], \"chosen\": " + kGood + ", \"rejected\": " + kBad + "}",
        conversations(led + ","), conversations(kQuestion + ",", ", \"system\": \"s\""),
        conversations(led + ",", ", \"prompt\": \" q\", \"prompt_id\": \"x\", \"messages\": [" +
                                     led + "," + kGood + "], \"score_chosen\": 8.0"),
        std::string(R"({"system": "s", "question": "q", "chosen": "a", "rejected": "b"})"),
        std::string(R"({"system": "s", "input": "q", "chosen": "a", "rejected": "b"})"),
        std::string(R"({"system": "s", "conversations": [{"from": "human", "value": "q"}], )"
                    R"("chosen": {"from": "gpt", "value": "a"}, )"
                    R"("rejected": {"from": "gpt", "value": "b"}})")}) {
    EXPECT_EQ(scored(row), expected) << row;
    EXPECT_EQ(prompts_[0], "<system>s\n<user>q\n<assistant>") << row;
  }
}

// An earlier answer is part of the prompt, so it is not scored.
TEST_F(Pairs, EarlierAnswersAreNotScored) {
  const std::string talk = kQuestion + "," + message("assistant", "c") + "," + kQuestion + ",";
  EXPECT_EQ(scored(conversations(talk)), (Texts{"a</s>", "b</s>"}));
  EXPECT_EQ(prompts_[0], "<user>q\n<assistant>c</s>\n<user>q\n<assistant>");
}

// The columns tools and chat_template_kwargs reach the template.
TEST_F(Pairs, ToolsAndTheRowsVariablesReachTheTemplate) {
  const ChatTemplate tells = ChatTemplate::from_text(
      "{{ (tools or []) | tojson }}{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "tells");
  options_.chat = &tells;
  EXPECT_EQ(
      scored(conversations(kQuestion + ",",
                           R"(, "tools": [{"name": "f"}], "chat_template_kwargs": {"mood": "!"})")),
      (Texts{"a", "b"}));
  EXPECT_EQ(prompts_[0], "[{\"name\": \"f\"}]!<user>q<assistant>");
}

// Token ids need no tokenizer: the prompt's are not scored.
TEST_F(Pairs, TokenIdsNeedNoTokenizer) {
  options_.tokenizer = nullptr;
  const LoadedData data =
      load(R"({"prompt_ids": [5, 6], "chosen_ids": [7, 8], "rejected_ids": [9]})");
  EXPECT_EQ(tokens_of(data, 0), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(targets_of(data, 0), (Ids{-100, 7, 8, -100}));
  EXPECT_EQ(tokens_of(data, 1), (Ids{5, 6, 9}));
  EXPECT_EQ(targets_of(data, 1), (Ids{-100, 9, -100}));
}

// Members have other names with data.keys, and members that nobody reads are counted.
TEST_F(Pairs, MembersHaveOtherNamesAndUnreadOnesAreCounted) {
  options_.data.format = DataSection::Format::kPreference;
  options_.data.keys = {"prompt = \"p\"", "chosen = \"good\"", "rejected = \"bad\""};
  EXPECT_EQ(scored(R"({"p": "q", "good": "a", "bad": "b", "score": 2})"),
            (Texts{"a</s>", "b</s>"}));
  EXPECT_EQ(load().report.files[0].unread, (std::map<std::string, int64_t>{{"score", 1}}));
}

// Goal: a pair whose chosen answer alone is to be trained stays possible, by its format.
TEST_F(Pairs, AnotherFormatTrainsTheChosenAnswerAlone) {
  options_.data.format = DataSection::Format::kMessages;
  const LoadedData talk = load(conversations(kQuestion + ","));
  EXPECT_EQ(talk.dataset->document_count(), 1);
  EXPECT_EQ(learned(talk, 0), "a</s>");
  options_.data.format = DataSection::Format::kPromptCompletion;
  EXPECT_EQ(learned(load(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), 0), "a</s>");
}

// Rows that are no pair give a reason that names the member.
TEST_F(Pairs, OtherRowsAreRefusedWithAReason) {
  const std::vector<std::pair<std::string, std::string>> kRows = {
      {R"({"chosen": "ab", "rejected": "a"})", "does not show where the prompt ends"},
      {R"({"chosen": "a", "rejected": "b"})", "chosen and rejected: the texts have no common"},
      {R"({"prompt": "q", "chosen": "a", "rejected": [)" + kBad + "]}",
       "rejected: messages, but chosen is a text; both answers must be of one kind"},
      {R"({"prompt": [)" + kQuestion + R"(], "chosen": "a", "rejected": "b"})",
       "prompt: messages, but chosen is a text; give the answers as messages too"},
      {R"({"prompt": "q", "chosen": [)" + kGood + R"(], "rejected": [)" + kBad + "]}",
       "prompt: a text, but chosen holds messages"},
      {conversations(kQuestion + ",", ", \"prompt\": \"other\""),
       "prompt: a text, but chosen holds messages"},
      {R"({"chosen": [)" + kQuestion + "], \"rejected\": [" + kQuestion + "," + kBad + "]}",
       "chosen: holds no answer behind the messages that both have in common"},
      {R"({"chosen": [)" + kGood + "], \"rejected\": [" + kBad + "]}",
       "the conversations have no common beginning"},
      {R"({"chosen": [)" + kQuestion + "," + message("user", "x") + R"(], "rejected": [)" +
           kQuestion + "," + kBad + "]}",
       "chosen: the first message of the answer is not the assistant's"},
      {R"({"prompt": "q", "chosen": 3, "rejected": "b"})",
       "chosen: expected a string or messages, found an integer"},
      {R"({"prompt": "q", "chosen": "", "rejected": "b"})", "chosen: the string is empty"},
      {R"({"prompt": "q", "chosen": [], "rejected": "b"})", "chosen: holds no message"},
      {R"({"prompt": {}, "chosen": [)" + kGood + R"(], "rejected": [)" + kBad + "]}",
       "prompt: expected a text or messages, found an object with none"},
      {R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": []})",
       "rejected_ids: the array is empty"},
      {R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [999]})",
       "rejected_ids[0]: 999 is no token of the model"},
      {R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "x": 1})", "no error"},
      {R"({"prompt_ids": [1], "chosen_ids": [2]})", "no known format"}};
  for (const auto& [row, reason] : kRows) {
    EXPECT_NE(refusal(row).find(reason), std::string::npos) << row << "\n" << refusal(row);
  }
}

// A mask of other tokens than the answers' is refused, whatever the rows.
TEST_F(Pairs, AMaskOfOtherTokensIsRefused) {
  options_.data.mask = DataSection::Mask::kAll;
  EXPECT_NE(refusal(conversations(kQuestion + ",")).find("set data.mask = \"auto\""),
            std::string::npos);
}

// A row of KTO has one answer, as text, messages or token ids, and its label.
TEST_F(Pairs, ARowWithALabelHasOneAnswer) {
  const std::string text = R"({"prompt": "sky", "completion": " blue", "label": true})";
  const std::string bad = R"({"prompt": "sky", "completion": " red", "label": false})";
  const LoadedData data = load(text + "\n" + bad);
  EXPECT_EQ(data.report.files[0].format, "unpaired-preference");
  ASSERT_EQ(data.dataset->document_count(), 2);
  EXPECT_EQ(learned(data, 0), " blue</s>");
  EXPECT_EQ(learned(data, 1), " red</s>");
  EXPECT_TRUE(data.dataset->is_desirable(0));
  EXPECT_FALSE(data.dataset->is_desirable(1));
  EXPECT_FALSE(data.dataset->row_goes_on(1));
  EXPECT_EQ(learned(load("{\"prompt\": [" + kQuestion + "], \"completion\": [" + kGood +
                         "], \"label\": false}"),
                    0),
            "a</s>");
  const LoadedData ids = load(R"({"prompt_ids": [5, 6], "completion_ids": [7], "label": false})");
  EXPECT_EQ(tokens_of(ids, 0), (Ids{5, 6, 7}));
  EXPECT_EQ(targets_of(ids, 0), (Ids{-100, 7, -100}));
  EXPECT_FALSE(ids.dataset->is_desirable(0));
  options_.data.format = DataSection::Format::kUnpaired;
  EXPECT_NE(refusal(R"({"prompt": "q", "completion": "a"})").find("expected a key \"label\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"completion": "a", "label": true})").find("prompt"), std::string::npos);
}

// The rejected answer of a pair is not desirable, so that KTO can take both as rows.
TEST_F(Pairs, TheRejectedAnswerIsNotDesirable) {
  const LoadedData data = load(conversations(kQuestion + ","));
  EXPECT_TRUE(data.dataset->is_desirable(0));
  EXPECT_FALSE(data.dataset->is_desirable(1));
}

// Mismatched rows: the prompt of each row with the answer of the row before it in its group, the
// first with the last's. A single row at the end joins the group before it.
TEST_F(Pairs, MismatchedRowsTakeTheAnswerOfTheRowBefore) {
  std::string rows;
  for (int i = 1; i <= 5; ++i) {
    const std::string n = std::to_string(i);
    rows += R"({"prompt_ids": [)" + n + ", " + n + R"(], "completion_ids": [1)" + n + ", 2" + n +
            R"(], "label": true})" + "\n";
  }
  const LoadedData data = load(rows);
  const auto tokens = [](const Dataset& set, int64_t document) {
    Ids ids, targets;
    set.append_document(document, ids, targets);
    EXPECT_EQ(std::ssize(ids), set.document_tokens(document));
    EXPECT_EQ(targets.size(), ids.size());
    EXPECT_EQ(targets.back(), -100);
    EXPECT_EQ(std::ssize(targets) - std::ranges::count(targets, int64_t{-100}),
              set.document_trained_tokens(document));
    return ids;
  };
  const MismatchedDataset pairs(data.dataset.get(), 2, 4096);
  EXPECT_EQ(tokens(pairs, 0), (Ids{1, 1, 12, 22}));
  EXPECT_EQ(tokens(pairs, 1), (Ids{2, 2, 11, 21}));
  EXPECT_EQ(tokens(pairs, 2), (Ids{3, 3, 15, 25}));
  EXPECT_EQ(tokens(pairs, 3), (Ids{4, 4, 13, 23}));
  EXPECT_EQ(tokens(pairs, 4), (Ids{5, 5, 14, 24}));
  EXPECT_EQ(pairs.document_trained_tokens(0), 2);
  const MismatchedDataset cut(data.dataset.get(), 5, 3);
  EXPECT_EQ(tokens(cut, 0), (Ids{1, 1, 15}));
  EXPECT_NE(cut.fingerprint(), pairs.fingerprint());
}

// Both answers of a pair go to the next pair, so none is behind a prompt of its own.
TEST_F(Pairs, MismatchedPairsTakeTheAnswersOfThePairBefore) {
  const LoadedData data = load(R"({"prompt_ids": [1], "chosen_ids": [11], "rejected_ids": [21]})"
                               "\n"
                               R"({"prompt_ids": [2], "chosen_ids": [12], "rejected_ids": [22]})");
  const MismatchedDataset mismatched(data.dataset.get(), 2, 4096);
  const std::vector<Ids> expected = {{1, 12}, {1, 22}, {2, 11}, {2, 21}};
  for (int64_t document = 0; document < 4; ++document) {
    Ids ids, targets;
    mismatched.append_document(document, ids, targets);
    EXPECT_EQ(ids, expected[static_cast<size_t>(document)]) << document;
  }
  const LoadedData one = load(R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]})");
  EXPECT_THROW(MismatchedDataset(one.dataset.get(), 2, 4096), DataError);
}

// Bad answers of KTO's rows are not trained as good ones.
TEST_F(Pairs, JudgedAnswersAreNotTrainedAsGoodOnes) {
  options_.data.format = DataSection::Format::kPromptCompletion;
  EXPECT_NE(refusal(R"({"prompt": "q", "completion": "a", "label": true})")
                .find("rows.jsonl:1: label: a true or false judgement of the answer; set"),
            std::string::npos);
  options_.data.format = DataSection::Format::kMessages;
  EXPECT_NE(refusal(R"({"messages": [{"role": "assistant", "content": "a"}], "label": false})")
                .find("rows.jsonl:1: label: a true or false judgement of the answer; set"),
            std::string::npos);
}

std::string ids_row(int64_t prompt, int64_t chosen, int64_t rejected) {
  const auto list = [](int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(i + 1);
    return "[" + text + "]";
  };
  return "{\"prompt_ids\": " + list(prompt) + ", \"chosen_ids\": " + list(chosen) +
         ", \"rejected_ids\": " + list(rejected) + "}\n";
}

// If either side is too long, the start of both is kept; a pair of which a side has no answer left
// is dropped. Never is one side left alone.
TEST_F(Pairs, AreCutOrDroppedTogether) {
  options_.data.max_tokens = 8;
  const std::string rows =
      ids_row(3, 2, 3) + ids_row(3, 9, 2) + ids_row(3, 1, 20) + ids_row(8, 1, 2) + ids_row(2, 1, 1);
  EXPECT_NE(refusal(rows).find("rows.jsonl:2: 12 tokens, more than data.max_tokens = 8"),
            std::string::npos);
  const auto lengths = [](const LoadedData& data) {
    std::vector<int64_t> found;
    for (int64_t d = 0; d < data.dataset->document_count(); ++d) {
      EXPECT_EQ(data.dataset->row_goes_on(d), d % 2 == 1) << d;
      found.push_back(data.dataset->document_tokens(d));
    }
    return found;
  };
  options_.data.overlength = DataSection::Overlength::kTruncate;
  const LoadedData cut = load(rows);
  EXPECT_EQ(lengths(cut), (std::vector<int64_t>{5, 6, 8, 5, 4, 8, 3, 3}));
  EXPECT_EQ(cut.report.files[0].truncated, 2);
  EXPECT_EQ(cut.report.files[0].dropped, 1);
  EXPECT_EQ(cut.report.files[0].resampled_rows, 0);
  options_.data.overlength = DataSection::Overlength::kDrop;
  const LoadedData dropped = load(rows);
  EXPECT_EQ(lengths(dropped), (std::vector<int64_t>{5, 6, 3, 3}));
  EXPECT_EQ(dropped.report.files[0].dropped, 3);
  options_.data.overlength = DataSection::Overlength::kSplit;
  EXPECT_NE(refusal(rows).find("an answer of a pair cannot be split"), std::string::npos);
}

// Pairs that are packed, held out, repeated and shuffled stay whole and in order, and a batch names
// the documents that it has.
TEST_F(Pairs, StayWholeInSequencesPartsAndBatches) {
  std::string rows;
  for (int64_t row = 0; row < 40; ++row) {
    rows += ids_row(1 + row % 5, 1 + row % 7, 1 + row * 3 % 11);
  }
  options_.files = {files_.write("rows.jsonl", rows)};
  for (const HoldOut::Part part : {HoldOut::Part::kTrained, HoldOut::Part::kHeldOut}) {
    PreparedData prepared = prepare_or_open(options_);
    std::vector<std::shared_ptr<const Dataset>> files;
    for (auto& file : prepared.files) files.push_back(std::move(file));
    const CombinedDataset data(std::move(files), {1.5}, {part, 0.25, 3});
    for (const bool packing : {true, false}) {
      const SequenceTable table = make_sequences(data, {.packing = packing,
                                                        .max_tokens = 48,
                                                        .shuffle_seed = packing ? 7 : 8,
                                                        .whole_rows = true});
      std::vector<int64_t> seen, sequences;
      for (int64_t s = 0; s < table.sequence_count(); ++s) {
        const auto documents = table.documents_of(s);
        ASSERT_EQ(documents.size() % 2, 0u);
        if (!packing) {
          ASSERT_EQ(documents.size(), 2u);
        }
        int64_t tokens = 0;
        for (size_t i = 0; i < documents.size(); ++i) {
          ASSERT_EQ(data.row_goes_on(documents[i]), i % 2 == 1);
          if (i % 2 == 1) {
            ASSERT_EQ(documents[i], documents[i - 1] + 1);
          }
          tokens += data.document_tokens(documents[i]);
          seen.push_back(documents[i]);
        }
        ASSERT_LE(tokens, 48);
        sequences.push_back(s);
      }
      const Batch batch = make_token_batch(data, table, sequences);
      EXPECT_EQ(batch.documents(), seen);
      EXPECT_EQ(batch.document_starts.size(), seen.size() + 1);
      for (size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(batch.document_starts[i + 1] - batch.document_starts[i],
                  data.document_tokens(seen[i]));
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(static_cast<int64_t>(seen.size()), data.document_count());
      for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<int64_t>(i));
    }
  }
}

// A table of pairs is read as its rows in JSONL.
TEST_F(Pairs, OfATableAreThoseOfItsRows) {
  const std::string tables = test_data() + "/data/tables/";
  const auto read = [&](const std::string& name) {
    options_.files = {tables + name};
    const LoadedData data = load();
    std::vector<Ids> documents;
    for (int64_t d = 0; d < data.dataset->document_count(); ++d) {
      documents.push_back(tokens_of(data, d));
      documents.push_back(targets_of(data, d));
    }
    return documents;
  };
  const std::vector<Ids> rows = read("pairs.jsonl");
  EXPECT_EQ(rows.size(), 8u);
  EXPECT_EQ(read("pairs.parquet"), rows);
}

// Goal: the token ids and their split into prompt and answers are TRL's.
TEST(PreferenceRows, HaveTheTokensThatTrlMakes) {
  const std::string texts = test_data() + "/text/";
  std::ifstream file(test_data() + "/data/preference_rows.jsonl");
  int64_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json golden = parse_json(line, {}, "preference_rows.jsonl");
    SCOPED_TRACE(golden["tokenizer"].get<std::string>() + ": " + golden["row"].dump());
    const Tokenizer tokenizer =
        Tokenizer::load(texts + "golden/" + golden["tokenizer"].get<std::string>());
    std::optional<ChatTemplate> chat;
    if (const auto name = golden["template"].get<std::string>(); !name.empty()) {
      const std::string path = "published_templates/" + name + ".jinja";
      chat = ChatTemplate::from_text(read_whole_file(texts + path, kMiB), tokenizer, "2024-07-26",
                                     path);
    }
    const RowFormatOptions options{.tokenizer = &tokenizer,
                                   .model_vocabulary_size = tokenizer.id_limit(),
                                   .chat = chat ? &*chat : nullptr};
    const auto format = make_row_format(detect_format(golden["row"], options), options);
    const std::vector<Document> pair = format->read_row(golden["row"]);
    ASSERT_EQ(pair.size(), 2u);
    for (size_t side = 0; side < 2; ++side) {
      const auto prompt = golden["prompt_ids"].get<std::vector<TokenId>>();
      auto tokens = prompt;
      std::vector<TokenId> labels(prompt.size(), kNotTrained);
      for (const Json& id : golden[side == 0 ? "chosen_ids" : "rejected_ids"]) {
        tokens.push_back(id.get<TokenId>());
        labels.push_back(id.get<TokenId>());
      }
      EXPECT_EQ(pair[side].tokens, tokens);
      EXPECT_EQ(pair[side].labels, labels);
    }
  }
  EXPECT_EQ(rows, 21);
}

}  // namespace
}  // namespace longshore
