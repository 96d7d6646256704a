// Asking the server. Answers that come when their page was left are not given: nothing of it goes on.
let page = 0;

export function turnPage() {
  page += 1;
}

export async function get(name, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(key, value);
  }
  const asked = page;
  const answer = await fetch(`/api/${name}?${query}`, { credentials: "same-origin" });
  if (answer.status === 401) throw new Error("The token is missing or old: open the link that `patchwright view` printed.");
  const content = await answer.json();
  if (asked !== page) await new Promise(() => {});
  if (!answer.ok) throw new Error(content.error || `the server answered ${answer.status}`);
  return content;
}
