// Search: pages come before the modules in which names are defined, where sphinx has it the other
// way round and a word with a short part, as R-hat, finds every module with an r.
var Scorer = {
  objNameMatch: 6,
  objPartialMatch: 1,
  objPrio: { 0: 0, 1: 0, 2: -1 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
