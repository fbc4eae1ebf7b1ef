// Rows with judgements that are no booleans and in the names of other trainers, earlier turns
// beside an instruction, and what `prepare` counts of rows that may not be trained as they are
// meant.
#include "tests/data/prepare_fixture.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

class JudgedRows : public PrepareFixture {
 protected:
  JudgedRows() { options_.data.max_tokens = 4096; }
};

// Goal: what tables and other languages have for true and false is a judgement, as booleans are.
TEST_F(JudgedRows, ReadJudgementsOfEverySpelling) {
  const std::vector<std::pair<std::string, std::string>> kSpellings = {
      {"true", "false"},         {"1", "0"},        {"1.0", "0.0"}, {"\"true\"", "\"false\""},
      {"\"True\"", "\"False\""}, {"\"1\"", "\"0\""}};
  for (const auto& [yes, no] : kSpellings) {
    const auto row = [](const std::string& label) {
      return "{\"prompt\": \"q\", \"completion\": \"a\", \"label\": " + label + "}\n";
    };
    const LoadedData data = load(row(yes) + row(no));
    EXPECT_EQ(data.report.files[0].format, "unpaired-preference") << yes;
    EXPECT_TRUE(data.dataset->is_desirable(0)) << yes;
    EXPECT_FALSE(data.dataset->is_desirable(1)) << no;
    EXPECT_TRUE(data.report.files[0].unread.empty()) << yes;
    options_.data.format = DataSection::Format::kPromptCompletion;
    EXPECT_NE(refusal(row(no)).find("label: a true or false judgement of the answer; set"),
              std::string::npos)
        << refusal(row(no));
    options_.data.format = DataSection::Format::kAuto;
  }
}

// Goal: any other judgement is refused with the reason, whatever the format, so that no loss trains
// bad answers as good ones; data.keys says that the member is none.
TEST_F(JudgedRows, RefuseOtherJudgementsWithTheReason) {
  const std::string question = "{\"role\": \"user\", \"content\": \"q\"}";
  const std::string answer = "{\"role\": \"assistant\", \"content\": \"a\"}";
  for (const std::string& row : {std::string(R"({"prompt": "q", "completion": "a")"),
                                 "{\"messages\": [" + question + "," + answer + "]",
                                 std::string(R"({"instruction": "q", "output": "a")")}) {
    for (const std::string label : {"\"good\"", "2", "-1", "0.5", "[true]"}) {
      const std::string judged = row + ", \"label\": " + label + "}";
      for (const auto format : {DataSection::Format::kAuto, DataSection::Format::kUnpaired}) {
        options_.data.format = format;
        EXPECT_NE(refusal(judged).find("label: expected a judgement of the answer, true or false"),
                  std::string::npos)
            << refusal(judged);
      }
    }
  }
  options_.data.format = DataSection::Format::kAuto;
  const std::string topic = R"({"prompt": "q", "completion": "a", "label": "sports"})";
  options_.data.keys = {"label = \"judgement\""};
  const LoadedData data = load(topic);
  EXPECT_EQ(data.report.files[0].format, "prompt-completion");
  EXPECT_EQ(data.report.files[0].unread, (std::map<std::string, int64_t>{{"label", 1}}));
}

// Goal: rows of LLaMA-Factory and conversations with a label give KTO's row: the last answer is the
// completion, and earlier ones belong to the prompt.
TEST_F(JudgedRows, TakeTheLastAnswerOfMessagesAndOfAlpacasNames) {
  const std::string talk =
      R"({"role": "user", "content": "p"}, {"role": "assistant", "content": "x"}, )"
      R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})";
  const std::string turns = R"({"from": "human", "value": "p"}, {"from": "gpt", "value": "x"}, )"
                            R"({"from": "human", "value": "q"}, {"from": "gpt", "value": "a"})";
  for (const std::string& row :
       {"{\"messages\": [" + talk + "], \"label\": false}",
        "{\"messages\": [" + talk + "], \"kto_tag\": false}",
        "{\"messages\": " + Json("[" + talk + "]").dump() + ", \"label\": 0}",
        "{\"conversations\": [" + turns + "], \"kto_tag\": false}",
        std::string(R"({"instruction": "q", "input": "", "output": "a", "history": [["p", "x"]], )"
                    R"("kto_tag": false})")}) {
    const LoadedData data = load(row);
    EXPECT_EQ(data.report.files[0].format, "unpaired-preference") << row;
    EXPECT_EQ(text_of(tokens_of(data, 0)), "<user>p\n<assistant>x</s>\n<user>q\n<assistant>a</s>\n")
        << row;
    EXPECT_EQ(learned(data, 0), "a</s>") << row;
    EXPECT_FALSE(data.dataset->is_desirable(0)) << row;
    EXPECT_TRUE(data.report.files[0].unread.empty()) << row;
  }
  EXPECT_NE(refusal(R"({"messages": [{"role": "assistant", "content": "a"}, )"
                    R"({"role": "user", "content": "q"}], "label": true})")
                .find("messages[1]: the last message is judged, but it is not the assistant's"),
            std::string::npos);
}

// Goal: LLaMA-Factory's rows with a system text and earlier turns are conversations, whose earlier
// answers are trained too; data.mask = "last" leaves them out. Text cannot hold them.
TEST_F(JudgedRows, OfAnInstructionWithEarlierTurnsAreConversations) {
  const std::string row = R"({"instruction": "q", "input": "i", "output": "a", "system": "s", )"
                          R"("history": [["p", "x"], ["r", "y"]]})";
  const LoadedData data = load(row);
  EXPECT_EQ(text_of(tokens_of(data, 0)),
            "<system>s\n<user>p\n<assistant>x</s>\n<user>r\n<assistant>y</s>\n<user>q\ni\n"
            "<assistant>a</s>\n");
  EXPECT_EQ(learned(data, 0), "x</s>y</s>a</s>");
  EXPECT_TRUE(data.report.files[0].unread.empty());
  options_.data.mask = DataSection::Mask::kLast;
  EXPECT_EQ(learned(load(row), 0), "a</s>");
  options_.data.mask = DataSection::Mask::kAuto;
  options_.data.keys = {"system = \"rules\"", "history = \"before\""};
  const LoadedData renamed = load(R"({"instruction": "q", "input": "i", "output": "a", )"
                                  R"("rules": "s", "before": [["p", "x"], ["r", "y"]]})");
  EXPECT_EQ(text_of(tokens_of(renamed, 0)), text_of(tokens_of(data, 0)));
  EXPECT_TRUE(renamed.report.files[0].unread.empty());
  options_.data.keys = {};
  const std::string pair =
      R"({"instruction": "q", "chosen": "a", "rejected": "b", "history": [["p", "x"]]})";
  EXPECT_EQ(text_of(tokens_of(load(pair), 0)),
            "<user>p\n<assistant>x</s>\n<user>q\n<assistant>a</s>\n");
  EXPECT_NE(refusal(R"({"instruction": "q", "output": "a", "history": [["p"]]})")
                .find("history[0]: expected a question and its answer"),
            std::string::npos);
  const std::string empty = R"({"instruction": "q", "output": "a", "history": []})";
  EXPECT_EQ(learned(load(empty), 0), "a</s>");
  options_.data.prompt_template = "alpaca";
  EXPECT_NE(refusal(row).find("history: earlier turns need the chat template; set "
                              "data.prompt_template = \"chat\""),
            std::string::npos);
  EXPECT_EQ(learned(load(empty), 0), "a</s>");
}

// Goal: members that may judge an answer are named where good and bad answers are trained alike.
TEST_F(JudgedRows, WithOpinionsThatAreNotReadAreWarnedOf) {
  const LoadedData data = load(R"({"prompt": "q", "completion": "a", "rating": 1, "id": 7})");
  ASSERT_EQ(data.report.warnings().size(), 1u);
  EXPECT_NE(data.report.warnings()[0].find("may judge the answers are not read: rating (1); good"),
            std::string::npos);
  EXPECT_TRUE(load(R"({"text": "q", "score": 1})").report.warnings().empty());
}

// Goal: pairs of two equal answers are counted, since their loss teaches nothing.
TEST_F(JudgedRows, CountPairsOfEqualAnswers) {
  const LoadedData data = load(R"({"prompt": "q", "chosen": "a", "rejected": "a"})"
                               "\n"
                               R"({"prompt": "q", "chosen": "a", "rejected": "b"})");
  EXPECT_EQ(data.report.files[0].equal_pairs, 1);
  EXPECT_NE(data.report.warnings().at(0).find("1 pairs have two equal answers"), std::string::npos);
}

// Goal: a token that joins the end of the prompt with the start of the answer is counted, since a
// server that gets the prompt alone has other tokens there.
TEST_F(JudgedRows, CountTokensThatSpanTheEndOfThePrompt) {
  const Tokenizer merges = Tokenizer::load(test_data() + "/text/golden/gpt2");
  options_.tokenizer = &merges;
  options_.model_vocabulary_size = merges.id_limit();
  const std::string joined = R"({"prompt": "The sky is ", "completion": "blue"})";
  EXPECT_EQ(load(joined).report.files[0].merged_borders, 1);
  EXPECT_EQ(
      load(R"({"prompt": "The sky is", "completion": " blue"})").report.files[0].merged_borders, 0);
  const std::string pair = R"({"prompt": "The sky is ", "chosen": "blue", "rejected": "red"})";
  EXPECT_EQ(load(pair).report.files[0].merged_borders, 1);
  EXPECT_NE(load(joined).report.warnings().at(0).find("1 rows have a token that joins"),
            std::string::npos);
  for (const std::string& row : {joined, pair}) {
    const DataReport report = load(row).report;
    EXPECT_NE(report.warnings().at(0).find("(the first is \" b\")"), std::string::npos)
        << report.warnings().at(0);
    const FileReport again = file_report_of(to_json(report.files[0]), "again");
    EXPECT_EQ(again.border_piece, " b");
  }
}

}  // namespace
}  // namespace longshore
