// Runs the script of the page at / in Node, without a browser: a page of plain objects, and the real server.
// Arguments: the server's URL, the page, a message, the model that answers it. Prints what the page then shows, as JSON.
"use strict";
const fs = require("fs");
const vm = require("vm");
const [url, path, message, model] = process.argv.slice(2);

function makeElement() {
  const listeners = {};
  return {
    children: [], textContent: "", value: "", hidden: false, className: "", listeners, width: 600, height: 120,
    classList: {add(name) { this.added = name; }},
    append(...more) { this.children.push(...more); },
    replaceChildren(...more) { this.children = more; },
    scrollIntoView() {},
    addEventListener(name, call) { listeners[name] = call; },
    requestSubmit() { listeners.submit({preventDefault() {}}); },
    getContext: () => ({clearRect() {}, fillRect() {}}),
  };
}

const html = fs.readFileSync(path, "utf8");
const elements = {};
for (const [, id] of html.matchAll(/ id="(\w+)"/g)) elements[id] = makeElement();
for (const [, id, value] of html.matchAll(/ id="(\w+)"[^>]* value="([^"]*)"/g)) elements[id].value = value;
elements.temperature.value = "0";
elements.max_tokens.value = "60";

const context = vm.createContext({
  document: {getElementById: (id) => elements[id], createElement: makeElement},
  fetch: (target, options) => fetch(url + "/" + target, options),
  performance, setTimeout, AbortController, TextDecoderStream, JSON, Object, Math, Number, Error, NaN,
});
vm.runInContext(html.split("<script>")[1].split("</script>")[0], context);

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
async function until(condition) {
  for (let turn = 0; turn < 300 && !condition(); ++turn) await wait(0.1);
}

(async () => {
  await until(() => elements.model.children.length > 0 && elements.ranks.children.length > 0);
  elements.model.value = model;
  elements.model.listeners.change();
  elements.text.value = message;
  elements.form.requestSubmit();
  await until(() => elements.send.hidden);
  await until(() => !elements.send.hidden);
  await wait(1.2);  // another look at the metrics
  console.log(JSON.stringify({
    models: elements.model.children.map((option) => option.textContent),
    state: elements.state.textContent,
    messages: elements.messages.children.map((box) => ({
      role: box.className, text: box.children.length ? box.children[0].textContent : box.textContent,
      note: box.children.length ? box.children[1].textContent : "",
    })),
    ranks: elements.ranks.children.map((row) => row.children.map((cell) => cell.textContent)),
    cache: elements.cache.textContent,
  }));
  process.exit(0);
})();
