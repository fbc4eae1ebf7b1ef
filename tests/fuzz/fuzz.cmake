# test_fuzz: every fuzz target over its corpus, in any compiler. search_inputs: the same targets
# under libFuzzer, where LONGSHORE_SANITIZE has it (the preset `fuzz`, clang alone). Both compile
# the few parsers that lie in libraries of LibTorch's users, so that neither needs LibTorch.
file(GLOB targets CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_target*.cpp)
foreach(parser config_decoder config_reader convolution_families families family_names
               gemma4_family moe_families sliding_families)
  list(APPEND targets ${PROJECT_SOURCE_DIR}/src/model/families/${parser}.cpp)
endforeach()
foreach(parser src/comm/store/store_messages src/comm/store/store_table nvme/commit/manifest trainer/checkpoint/checkpoint_manifest
               trainer/checkpoint/json_fields trainer/checkpoint/run_progress
               trainer/checkpoint/start_identity)
  list(APPEND targets ${PROJECT_SOURCE_DIR}/${parser}.cpp)
endforeach()

function(longshore_fuzz program)
  add_executable(${program} ${ARGN} ${targets})
  longshore_group_sources(${program} ${targets})
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(
    ${program} PRIVATE longshore::base longshore::config longshore::hf longshore::text
                       longshore::data nlohmann_json::nlohmann_json)
endfunction()
if(LONGSHORE_SANITIZE MATCHES "fuzzer")
  longshore_fuzz(search_inputs ${CMAKE_CURRENT_LIST_DIR}/search.cpp)
  target_link_options(search_inputs PRIVATE -fsanitize=fuzzer)
else()
  longshore_fuzz(test_fuzz ${CMAKE_CURRENT_LIST_DIR}/replay_test.cpp ${where})
  target_link_libraries(test_fuzz PRIVATE GTest::gtest GTest::gtest_main)
  longshore_register_test(fuzz)
endif()
